"""`lockstep chaos` on real runs: what survives, what does not, and that nothing stays when it is interrupted."""

import json
import signal

import pytest
from chaos_runs import BATCH, Start, folder_for, small

pytestmark = pytest.mark.chaos

ENVS = '''
import json

import numpy as np

from lockstep.envs.spec import ActionSpec, EnvSpec


# The check before a run makes three environments and would refuse both classes: their defects show in larger batches.
CHECKED = 3


class Unsavable:
    """Breaks in step `breaks_at` of its life."""

    def __init__(self, num_envs, breaks_at=-1):
        self.spec, self.num_envs = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True), num_envs
        self.breaks_at, self.steps = breaks_at, 0

    def reset(self, seeds):
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        return self.observe()

    def observe(self):
        return np.stack([generator.standard_normal(3, dtype=np.float32) for generator in self.generators])

    def step(self, action):
        self.steps += 1
        if self.steps == self.breaks_at and self.num_envs > CHECKED:
            raise ValueError("worn out")
        observation, reward, no = self.observe(), np.ones(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        terminated = np.array([generator.random() < 0.1 for generator in self.generators])
        return observation, reward, terminated, no, observation

    def close(self):
        pass


class Forgetful(Unsavable):
    """Has the methods of an environment that can be saved, and restores nothing."""

    def state(self):
        return {"generators": [json.dumps(generator.bit_generator.state) for generator in self.generators]}

    def restore(self, state):
        if self.num_envs > CHECKED:
            return
        for generator, saved in zip(self.generators, state["generators"]):
            generator.bit_generator.state = json.loads(saved)
'''


def chaos(folder, *arguments):
    return Start(folder, "run.yaml", "--run-dir", "run", *arguments, command="chaos")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_run_that_survives(tmp_path, ranks):
    folder_for(tmp_path, small())
    start = chaos(tmp_path, "--ranks", str(ranks), "--faults", "kill,diskfull,launcher,corrupt", "--seed", "6")
    assert start.wait(300.0) == 0, start.said
    assert start.left() == []
    result = json.loads((start.run_dir / "chaos.json").read_text())
    assert [trial["fault"] for trial in result["trials"]] == ["kill", "diskfull", "launcher", "corrupt"]
    for trial in result["trials"]:
        assert trial["survived"]
        assert trial["same_parameters"]
        assert trial["exit_code"] == 0
        assert trial["restarts"] == (0 if trial["fault"] == "diskfull" else 1)
        assert 0 <= trial["steps_lost"] <= trial["step"]
        assert trial["step"] == trial["update"] * BATCH
    said = start.out.read_text()
    assert "timeout_s=4" in said
    assert said.count(" survived ") == 4, said
    assert "4 of 4 faults survived" in said
    assert start.half_written() == []


def own(folder, name, **changes):
    """A run of an environment of the user's own."""
    (folder / "envs.py").write_text(ENVS)
    return folder_for(folder, small(task=f"{folder}/envs.py:{name}", **changes))


def test_environments_that_cannot_be_saved_promise_nothing(tmp_path):
    start = chaos(own(tmp_path, "Unsavable"), "--ranks", "2", "--faults", "kill", "--seed", "6")
    assert start.wait(200.0) == 0, start.said
    said = start.out.read_text()
    assert "not promised" in said, start.said
    assert "cannot be saved" in said, start.said
    assert "1 of 1 faults survived" in said


def test_a_run_that_does_not_survive(tmp_path):
    start = chaos(own(tmp_path, "Forgetful"), "--ranks", "2", "--faults", "kill,diskfull", "--seed", "6")
    assert start.wait(200.0) == 1, start.said
    said = start.out.read_text()
    assert "NOT survived  it ended with other parameters" in said, start.said
    assert "1 of 2 faults survived" in said
    kill, diskfull = json.loads((start.run_dir / "chaos.json").read_text())["trials"]
    assert (kill["survived"], kill["same_parameters"]) == (False, False)
    assert (diskfull["survived"], diskfull["same_parameters"]) == (True, True)


def test_a_run_that_fails_undisturbed_says_so(tmp_path):
    folder = own(tmp_path, "Unsavable", **{"env.kwargs": {"breaks_at": 100}})
    start = chaos(folder, "--ranks", "2", "--faults", "kill", "--seed", "6")
    assert start.wait(200.0) == 1, start.said
    assert "the undisturbed run failed: rank" in start.errors, start.said
    assert "worn out" in start.errors
    assert "Traceback" not in start.errors


def test_an_interruption_leaves_nothing(tmp_path):
    folder_for(tmp_path, small())
    start = chaos(tmp_path, "--ranks", "2", "--faults", "stall", "--seed", "1")
    start.until((start.run_dir / "stall" / "logs" / "injected_fault.json").exists)
    start.process.send_signal(signal.SIGINT)
    assert start.wait(60.0) == 130, start.said
    assert start.left() == []
    assert "0 of 1 faults were tried" in start.out.read_text()


def test_nothing_outlives_a_chaos_that_is_killed(tmp_path):
    folder_for(tmp_path, small(total_steps=100_000 * BATCH))
    start = chaos(tmp_path, "--ranks", "2", "--faults", "kill", "--max-iterations", "100000")
    start.until((start.run_dir / "undisturbed" / "metrics.jsonl").exists)
    start.process.kill()
    start.wait()
    assert start.left() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "kill,earthquake"], "--faults earthquake: no such fault; there are kill, raise"),
        (["--max-iterations", "2"], "chaos needs at least"),
    ],
)
def test_refusals(tmp_path, arguments, words):
    folder_for(tmp_path, small())
    start = chaos(tmp_path, "--ranks", "2", *arguments)
    assert start.wait(60.0) == 2, start.said
    assert words in start.errors
    assert not start.run_dir.exists()
