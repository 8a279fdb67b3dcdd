"""Captured gradient steps: a graph on a CPU is a tape (`pretended_graph`), which shows everything but speed."""

from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.cli import main as cli
from lockstep.errors import ConfigError, RunError
from lockstep.run import NetworkConfig, Run
from lockstep.torch import actor_critic, capture, dqn, ppo
from lockstep.torch.batch import Batch
from lockstep.torch.capture import CapturedStep, GradientStep, announce_capture, obstacle
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.offline import optimizer
from lockstep.torch.transitions import TransitionBatch
from made_data import parametric
from pretended_graph import TapeGraphs, record_graphs
from small_learners import CONTINUOUS, OFFLINE, make, rollouts, values

DECAY = {"learning_rate_schedule": "linear"}
CASES = {
    "ppo": ("ppo", DECAY),
    "ppo, clipped values": ("ppo", {"value_clip_range": 0.2, "learning_rate_schedule": "adaptive"}),
    "ppo, rate before the step": (
        "ppo",
        {"learning_rate_schedule": "adaptive", "adapt_every": "minibatch", "adapt_before_step": True},
    ),
    "ppo on tensors": ("ppo on tensors", DECAY),
    "dqn": ("dqn", DECAY),
    "dqn, prioritized": ("dqn", {"prioritized": True, "double": True, "target_rate": 0.1}),
    "dqn, rainbow": ("dqn", {"noisy": True, "double": True, "value_distribution": "categorical"}),
    "sac": ("sac", DECAY),
    "sac, redq": ("sac", {"num_critics": 4, "target_critics": 2, "policy_delay": 2, "prioritized": True}),
    "td3": ("td3", DECAY),
    **{name: (name, DECAY) for name in OFFLINE if "candidates" not in name},
}


@pytest.fixture
def graphs(monkeypatch):
    """As on a GPU. Returns all captured steps."""
    return record_graphs(monkeypatch)


def update(one, count=6):
    for number in range(count):
        one.update(number)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_captured_steps_have_the_same_bits(graphs, tmp_path, case):
    name, config = CASES[case]
    captured = make(name, tmp_path, config=config, capture=True)
    eager = make(name, tmp_path, config=config)
    for one in (captured, eager):
        update(one, 10)
    assert graphs and all(step.num_replays > 1 for step in graphs)
    found = values(captured.learner)
    for key, value in values(eager.learner).items():
        assert torch.equal(value, found[key]), f"{key} differs"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_captured_parts_of_several_ranks_have_the_same_bits(graphs, tmp_path, case):
    """As on several ranks: one graph before the collective and one after it, which is in neither."""
    name, config = CASES[case]

    def of_two_ranks(run, comm, *given, **options):
        two = SimpleNamespace(
            device=comm.device, world=World(size=2), average_gradients_=lambda flat: comm.average_gradients_(flat)
        )
        return capture.GradientStep(run, two, *given, **options)

    with ExitStack() as stack:
        for module in (ppo, dqn, actor_critic, optimizer):
            stack.enter_context(mock.patch.object(module, "GradientStep", of_two_ranks))
        captured = make(name, tmp_path, config=config, capture=True)
    eager = make(name, tmp_path, config=config)
    with mock.patch.object(Comm, "average_gradients_", autospec=True, side_effect=Comm.average_gradients_) as average:
        update(captured, 10)
    assert graphs and len(graphs) % 2 == 0 and all(step.num_replays > 1 for step in graphs)
    parts = [step for step in graphs if "TensorShard" not in step._function.__qualname__]  # not steps of rollouts
    assert sum(step.num_replays for step in parts) < 2 * average.call_count, "the collective is in a graph"
    update(eager, 10)
    found = values(captured.learner)
    for key, value in values(eager.learner).items():
        assert torch.equal(value, found[key]), f"{key} differs"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_captured_step_that_is_not_finite_is_skipped(graphs, tmp_path, name):
    """The numbers of a later update are not finite: the graph decides anew in each launch."""
    found = []
    for captured in (True, False):
        one = make(name, tmp_path, capture=captured, non_finite="skip")
        update(one)
        before = values(one.learner)
        with torch.no_grad():
            one.learner.flat.params[0] = torch.nan
        one.update(6)
        after = values(one.learner)
        moved = [k for k in before if k.startswith("optimizer") and not torch.equal(before[k], after[k])]
        assert not moved, f"{moved} changed in a step that is not finite"
        found.append(one.learner.metrics.read()["optim/skipped"])
    assert found[0] == found[1] > 0


@pytest.mark.slow
def test_captured_steps_stop_after_the_first_that_is_not_finite(graphs, tmp_path):
    one = make("ppo", tmp_path, capture=True)
    update(one)
    batches = one.learner._prepare(rollouts(CONTINUOUS, 7), np.zeros((2, 1)))[0]
    parts = [batch.split(one.learner.rows, 1)[0] for batch in batches]
    assert float(one.learner._gradient_step(parts)[0][-1]) == 0.0
    before = values(one.learner)
    first = one.learner.flat.params[0].item()
    with torch.no_grad():
        one.learner.flat.params[0] = torch.nan
    assert float(one.learner._gradient_step(parts)[0][-1]) == 1.0
    with torch.no_grad():
        one.learner.flat.params[0] = first  # later steps would be finite
    assert float(one.learner._gradient_step(parts)[0][-1]) == 1.0, "a step was taken after one that was not finite"
    after = values(one.learner)
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith(("policy", "optimizer")))


class TestCapturedStep:
    def step(self, function):
        made = CapturedStep(function, TapeGraphs())
        return made, lambda *inputs: made(list(inputs))

    def test_without_a_flag_what_cannot_be_captured_runs_without_graphs(self, capsys):
        class Refusing(TapeGraphs):
            def capture(self, function, generators=()):
                raise RunError("capture=true: no") from RuntimeError("operation not permitted")

        total = torch.zeros(())
        say = capture._on_failure(Run(task="t"), Comm(device="cpu"), "gradient steps run")
        made = CapturedStep(lambda inputs: total.add_(inputs[0].sum()).clone(), Refusing(), say)
        assert [float(made([torch.ones(2)])) for _ in range(6)] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
        assert capsys.readouterr().err.count("without CUDA graphs: operation not permitted") == 1
        wanted = CapturedStep(lambda inputs: total, Refusing())
        with pytest.raises(RunError, match="capture=true: no"):
            for _ in range(4):
                wanted([torch.ones(2)])

    def test_inputs_are_those_of_the_call(self):
        total = torch.zeros(())
        made, step = self.step(lambda inputs: total.add_(inputs[0].sum()).clone())
        results = [float(step(torch.full((2,), float(i)))) for i in range(6)]
        assert results == [0.0, 2.0, 6.0, 12.0, 20.0, 30.0]
        assert made.num_replays == 3

    def test_python_numbers_are_those_of_the_capture(self):
        """What a graph cannot do: a test that this stand-in finds such faults."""
        rate = [1.0]
        _, step = self.step(lambda inputs: inputs[0] * rate[0])
        for _ in range(4):
            step(torch.ones(1))
        rate[0] = 2.0
        assert float(step(torch.ones(1))) == 1.0

    def test_reading_on_the_host_is_refused(self):
        _, step = self.step(lambda inputs: inputs[0] if inputs[0].sum() > 0 else -inputs[0])
        for _ in range(3):
            step(torch.ones(1))
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            step(torch.ones(1))

    def test_shapes_and_options_have_graphs_of_their_own(self):
        made = CapturedStep(lambda inputs, sign: sign * inputs[0], TapeGraphs())
        for _ in range(5):
            for rows in (2, 3):
                for sign in (1, -1):
                    assert made([torch.ones(rows)], sign).tolist() == [sign] * rows
        assert made.num_replays == 4 * 2

    def test_many_shapes_are_not_captured(self):
        made = CapturedStep(lambda inputs: inputs[0] + 1, TapeGraphs())
        for _ in range(5):
            for rows in range(1, 60):
                assert made([torch.ones(rows)]).tolist() == [2.0] * rows
        assert made.num_replays == 2 * 32

    def test_columns_of_batches_are_copied(self):
        made = CapturedStep(lambda inputs: inputs[0].reward + inputs[0].weight * inputs[1].reward, TapeGraphs())
        blank = TransitionBatch.blank(CONTINUOUS, 2, torch.device("cpu"))
        for i in range(5):
            blank.reward.fill_(i)
            blank.weight.fill_(2)
            assert made([blank, blank]).tolist() == [3.0 * i] * 2

    def test_views_of_one_epoch_do_not_copy_it_whole(self):
        made = CapturedStep(lambda inputs: inputs[0].reward.sum(), TapeGraphs())
        columns = [torch.ones(1000, *shape) for shape in ((3,), (2,), (), (3,), (), ())]
        part = TransitionBatch(*columns).rows(0, 2)
        for _ in range(4):
            made([part])
        (captured,) = made._captured.values()
        assert all(column.untyped_storage().nbytes() <= 2 * 3 * 4 for column in captured.columns)


class Journal:
    def __init__(self):
        self.said = []

    def warn(self, text):
        self.said.append(f"warning: {text}")

    def say(self, text):
        self.said.append(text)


def test_where_capture_has_no_effect_is_said():
    journal, comm, flat = Journal(), Comm(device="cpu"), FlatParameters(torch.nn.Linear(2, 2))
    announce_capture(journal, Run(task="t"), comm, flat)
    assert not journal.said
    announce_capture(journal, Run(task="t", capture=True), comm, flat)
    assert journal.said == ["warning: capture=true has no effect on gradient steps: CUDA graphs need a GPU"]


OWN = NetworkConfig(module="mine:Network")


@pytest.mark.parametrize(
    ("run", "captured", "said"),
    [
        (Run(task="t"), True, "capture: gradient steps are CUDA graphs"),
        (Run(task="t", capture=False), False, None),
        (Run(task="t", network=OWN), False, "network.module may do in Python what a graph does not repeat"),
        (Run(task="t", algorithm=PPOConfig(symmetry="mine:mirror")), False, "symmetry may do in Python"),
        (Run(task="t", network=OWN, capture=True), True, "capture: gradient steps are CUDA graphs"),
    ],
)
def test_a_gpu_captures_without_a_flag_all_but_the_users_code(graphs, run, captured, said):
    journal, comm, flat = Journal(), Comm(device="cpu"), FlatParameters(torch.nn.Linear(2, 2))
    step = GradientStep(run, comm, flat, lambda given: given, lambda given: given)
    announce_capture(journal, run, comm, flat)
    assert isinstance(step._take, CapturedStep) == captured == bool(graphs)
    assert said in journal.said[0] if said else not journal.said


def test_large_gradients_are_sent_early_rather_than_captured(graphs):
    comm = SimpleNamespace(
        device=torch.device("cpu"), world=World(size=2), overlaps_gradients=lambda flat: True,
        start_gradients_=lambda flat: started.append("early"), average_gradients_=lambda flat: torch.zeros(1),
    )  # fmt: skip
    journal, started, found = Journal(), [], []
    for chosen in (None, True):
        run = Run(task="t", capture=chosen)
        made = GradientStep(run, comm, None, lambda given: None, lambda given: None)
        announce_capture(journal, run, comm, None)
        made([])
        found.append(started.copy())
    assert found == [["early"], ["early"]] and len(graphs) == 2
    assert "gradients this large are sent while" in journal.said[0] and "two CUDA graphs" in journal.said[1]


def test_obstacles_name_the_setting():
    given = Comm(device="cpu"), FlatParameters(torch.nn.Linear(2, 2))
    assert obstacle(Run(task="t"), *given) is None
    assert "kl_reference" in (obstacle(Run(task="t", algorithm=PPOConfig(kl_reference="previous_epoch")), *given) or "")
    assert "dropout" in (obstacle(Run(task="t", algo="sac", algorithm=SACConfig(dropout=0.1)), *given) or "")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["bc", "parametric_dqn"])
def test_a_policy_of_candidates_reports_that_it_is_not_captured(graphs, tmp_path, algo):
    """Whatever the algorithm: rows have different numbers of candidates, so that no shape comes back."""
    parametric(tmp_path / "data", 64)
    command = ["offline", "train", str(tmp_path / "data"), "--algo", algo, "--run-dir", str(tmp_path / "run")]
    settings = ["capture=true", "batch_size=32", "epochs=1", "hidden=[8]", "estimate=false"]
    assert cli.main([*command, *(word for setting in settings for word in ("--set", setting))]) == 0
    assert not graphs
    log = (tmp_path / "run" / "logs" / "rank_0.log").read_text()
    assert "capture=true has no effect on gradient steps: rows have different numbers of candidates" in log


def test_jax_refuses_capture():
    with pytest.raises(ConfigError, match=r"capture=true.*leave it out"):
        Run(task="t", ml_framework="jax", capture=True).check()


def test_a_batch_without_a_part_of_its_columns_keeps_its_layout():
    one = Batch.blank(CONTINUOUS, 4, torch.device("cpu"))
    with_state = Batch.blank(CONTINUOUS, 4, torch.device("cpu"), state_size=2)
    made = CapturedStep(lambda inputs: inputs[0].target.sum(), TapeGraphs())
    for _ in range(4):
        made([one])
        made([with_state])
    assert made.num_replays == 2
