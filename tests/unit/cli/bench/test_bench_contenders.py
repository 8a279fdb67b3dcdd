"""The scripts of `lockstep bench`, with stand-ins for the commands that they run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.bench import process

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")

# Stands for the interpreter that runs `lockstep offline`: preparing takes more memory than training.
OFFLINE = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
memory = bytearray({"prepare": 700, "train": 500}[words[3]] << 20)
if words[3] == "train":
    run_dir = Path(words[words.index("--run-dir") + 1])
    run_dir.mkdir()
    lines = [{"step": step, "time_s": step} for step in (1, 2, 3)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
"""
TRAINED = """
import sys, offline_dqn
offline_dqn.write_log = lambda path: None
sys.executable = sys.argv.pop(1)
offline_dqn.main()
"""
LOADED = """
import offline_dqn
offline_dqn.by_loader = lambda *steps: float(len(bytearray(500 << 20)))
offline_dqn.main()
"""
SYNCHRONIZED = """
import subprocess, sys, gradient_sync

def spawn(*given):
    subprocess.run([sys.executable, "-c", "bytearray(500 << 20)"], check=True)
    return [1.0, 2.0]

gradient_sync.lockstep.spawn = spawn
gradient_sync.main(gradient_sync.arguments("scheme", "parameters"))
"""


@pytest.mark.real_start  # the memory of a forked process is that of the one before, too
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (TRAINED, ["python", "lockstep", "--warm-up", "1", "--measured", "1"]),
        pytest.param(LOADED, ["loader", "--warm-up", "1", "--measured", "1"], marks=pytest.mark.slow),
        pytest.param(SYNCHRONIZED, ["ddp", "1"], marks=(TWO_CORES, pytest.mark.slow)),
    ],
    ids=["offline train", "offline loader", "gradients"],
)
def test_the_memory_is_that_of_the_processes_that_do_the_work(code, words, tmp_path):
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{OFFLINE}")
    (tmp_path / "python").chmod(0o755)
    words = [str(tmp_path / word) if word == "python" else word for word in words]
    row = printed("-c", code, *words)
    assert 500 <= row["peak_mb"] < 700 if code == TRAINED else row["peak_mb"] >= 500


# Stands for the interpreter that runs `lockstep train` and `lockstep offline`: 1000 steps per second, 500 before step
# 512, and then 100 seconds for the evaluation and the checkpoint at the end.
LINES = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
settings = dict(word.split("=") for word in words if "=" in word)
if "prepare" not in words:
    total = int(settings.get("total_steps", 0)) or 500_000 * int(settings["epochs"])
    every, update = int(settings["log_every"]), int(settings.get("num_steps", 1024))
    seconds = lambda step: step / 1000 + min(step, 512) / 1000
    steps = range(update, total + update, update)
    lines = [{"step": step, "time_s": seconds(step)} for step in steps if step // every > (step - update) // every]
    if lines[-1]["step"] != steps[-1]:
        lines.append({"step": steps[-1], "time_s": seconds(steps[-1]) + 100})
    run_dir = Path(words[words.index("--run-dir") + 1])
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
    (run_dir / "summary.json").write_text('{"versions": {}}')
"""
BY_COMMAND = """
import sys, with_lockstep
sys.executable = sys.argv.pop(1)
with_lockstep.main()
"""


@pytest.mark.real_start
@pytest.mark.parametrize(
    ("code", "words", "warm_up", "measured"),
    [
        (BY_COMMAND, "CartPole-v1 --ranks 1 --set num_steps=1024", 20480, 81920),
        (BY_COMMAND, "CartPole-v1 --ranks 1 --set num_steps=1024", 20480, 65536),
        (BY_COMMAND, "CartPole-v1 --ranks 1 --set num_steps=1024", 20480, 8192),
        pytest.param(BY_COMMAND, "HalfCheetah-v5 --ranks 1 --set num_steps=8", 512, 205, marks=pytest.mark.slow),
        pytest.param(TRAINED, "lockstep --ranks 2 --batch-size 2048", 409_600, 204_800, marks=pytest.mark.slow),
    ],
    ids=["whole", "no multiple of the warm-up", "less than the warm-up", "odd", "offline train"],
)
def test_the_speed_is_without_warm_up_and_final_evaluation_at_every_scale(code, words, warm_up, measured, tmp_path):
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{LINES}")
    (tmp_path / "python").chmod(0o755)
    steps = ["--warm-up", str(warm_up), "--measured", str(measured)]
    assert printed("-c", code, str(tmp_path / "python"), *words.split(), *steps)["value"] == pytest.approx(1000)


@pytest.mark.slow
@pytest.mark.real_start
def test_the_memory_of_a_first_update_is_that_of_its_process():
    assert printed(str(process.CONTENDERS / "first_update.py"), "torch")["peak_mb"] > 100  # the script itself: 20


# Stand for the packages: the agent makes a folder as rl_games does, where its checkpoints would be.
RL_GAMES = {
    "gym/__init__.py": "",
    "rl_games/common/__init__.py": "from types import SimpleNamespace\nenv_configurations = SimpleNamespace()",
    "rl_games/common/vecenv.py": "class IVecEnv: ...\ndef register(name, make): ...",
    "rl_games/torch_runner.py": """
import os
from rl_games.common import env_configurations
env_configurations.register = lambda name, settings: None

class Agent:
    obs = None
    def __init__(self, algo, *, base_name, params):
        config = params["config"]
        folder = os.path.abspath(os.path.join(config["train_dir"], config["full_experiment_name"]))
        os.makedirs(folder)
        with open(os.environ["FOLDER_WRITTEN_TO"], "w") as file:
            file.write(folder)
    def init_tensors(self): ...
    def env_reset(self): ...
    def update_epoch(self): ...
    def train_epoch(self): ...

class Runner:
    algo_name = "a2c_continuous"
    def load(self, settings):
        self.params = settings["params"]
        self.algo_factory = self
    def create(self, name, **given):
        return Agent(name, **given)
""",
}


@pytest.mark.real_start
def test_rl_games_leaves_no_folders(tmp_path):
    for name, text in RL_GAMES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "temporary").mkdir()
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [str(process.CONTENDERS / "with_rl_games.py"), "8", "--warm-up", "128", "--measured", "256"]
    written_to = tmp_path / "folder"
    variables = {"TMPDIR": str(tmp_path / "temporary"), "FOLDER_WRITTEN_TO": str(written_to)}
    assert printed(*words, PYTHONPATH=search, **variables)["value"] > 0
    assert Path(written_to.read_text()).is_relative_to(tmp_path / "temporary")
    assert list((tmp_path / "temporary").iterdir()) == []


def printed(*words: str, **variables: str) -> dict:
    """The result that a script prints in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(process.CONTENDERS)} | variables
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
