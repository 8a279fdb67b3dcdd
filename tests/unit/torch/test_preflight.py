"""What the preflight makes of cards and measurements: names, warnings, a line, a file; and the table of the probe."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep import World
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli import probe
from lockstep.envs.make import env_spec
from lockstep.errors import RunError
from lockstep.preflight.compare import FILE, Forecast, Host, Preflight, host_warnings, labelled
from lockstep.preflight.cost_model import Layout
from lockstep.preflight.latency import Network, Timing
from lockstep.run import EnvConfig, NetworkConfig, Run, override
from lockstep.system.cores import processor
from lockstep.torch.comm import Comm
from lockstep.torch.dqn import DQN
from lockstep.torch.forecast import forecast
from lockstep.torch.hardware import kind_of
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO
from lockstep.torch.preflight import preflight
from lockstep.torch.q_networks import QPolicy

ALPHA = Host(host="alpha", ranks=[0, 1], cores=4, device="cpu", processor="A", interface="eth0")
BETA = Host(host="beta", ranks=[2, 3], cores=8, device="cpu", processor="A", interface="eth0", clock_skew_s=-0.002)
NETWORK = Network(small=Timing(bytes=32, seconds=0.0005), large=Timing(bytes=4 * 2**20, seconds=0.1), bytes_per_s=42e6)
RUN = Run(
    task="lockstep/Match-v0",
    num_envs=8,
    algorithm=PPOConfig(num_steps=8, num_epochs=1, num_minibatches=2),
    network=NetworkConfig(hidden=(8,)),
)


def found(*hosts, **changes):
    size = sum(len(host.ranks) for host in hosts)
    return replace(Preflight(rank=0, world_size=size, hosts=list(hosts), versions={"python": "3.11.7"}), **changes)


class Told:
    """In place of the journal."""

    def __init__(self, path):
        self.path, self.said, self.warned = path, [], []

    def say(self, text):
        self.said.append(text)

    def warn(self, text):
        self.warned.append(text)

    def write_or_warn(self, write):
        write()


def shown(node, host):
    return {"node": node, "host": host}


def test_ranks_are_named_with_their_host_where_there_are_several():
    assert list(labelled([shown(0, "alpha"), shown(0, "alpha")])) == ["rank 0", "rank 1"]
    two = [shown(0, "alpha"), shown(0, "alpha"), shown(2, "beta")]
    assert list(labelled(two)) == ["rank 0 (alpha)", "rank 1 (alpha)", "rank 2 (beta)"]
    same = [shown(0, "vm"), shown(1, "vm"), shown(1, "vm"), shown(3, "gamma")]
    names = ["rank 0 (node 0 of vm)", "rank 1 (node 1 of vm)", "rank 2 (node 1 of vm)", "rank 3 (gamma)"]
    assert list(labelled(same)) == names


def test_clocks_that_differ_by_more_than_a_second_are_doubted():
    assert host_warnings(found(ALPHA, BETA), pinned=True) == []
    (ahead,) = host_warnings(found(ALPHA, replace(BETA, clock_skew_s=90.04)), pinned=False)
    assert ahead.startswith("the clock of beta is 90.0 s ahead of that of alpha")
    (behind,) = host_warnings(found(ALPHA, replace(BETA, clock_skew_s=-1.5)), pinned=False)
    assert "1.5 s behind that of alpha" in behind


def test_different_processors_matter_to_pinned_runs_and_different_gpus_to_all():
    other = replace(BETA, processor="B")
    assert host_warnings(found(ALPHA, other), pinned=False) == []
    (said,) = host_warnings(found(ALPHA, other), pinned=True)
    assert said == "different processors (A on alpha, B on beta): equal bits are promised for one kind of hardware only"
    gpus = [replace(ALPHA, device="H100"), replace(other, device="A100")]
    assert host_warnings(found(*gpus), pinned=False) == [
        "different devices (H100 on alpha, A100 on beta): the slowest decides"
    ]
    (said,) = host_warnings(found(*gpus), pinned=True)
    assert "equal bits" in said
    assert "processors" not in said, "who computes on GPUs is not told of processors"


def test_one_host_prints_nothing_and_writes_its_file(tmp_path):
    to = Told(tmp_path)
    found(ALPHA).report(to)
    assert (to.said, to.warned) == ([], [])
    written = json.loads((tmp_path / FILE).read_text())
    assert (written["num_hosts"], written["hosts"][0]["cores"], written["small"]) == (1, 4, None)


def test_several_hosts_print_their_network_and_the_prediction(tmp_path):
    ahead = Forecast(
        num_parameters=100,
        messages_per_update=5,
        steps_per_second=2.0,
        one_host_steps_per_second=1.0,
        line="L",
        advice=None,
    )
    to = Told(tmp_path)
    found(ALPHA, BETA, network=NETWORK, forecast=ahead, warnings=["W"], notes=["N"]).report(to)
    line, note = to.said
    assert line.startswith(
        "4 ranks on 2 hosts (ranks 0-1 on alpha, ranks 2-3 on beta); a small sum over all takes 0.5 ms"
    )
    assert line.endswith("one of 4 MiB 100 ms; L")
    assert (note, to.warned) == ("N", ["W"])
    written = json.loads((tmp_path / FILE).read_text())
    assert written["small"] == {"bytes": 32, "seconds": 0.0005}
    assert written["large"] == {"bytes": 4194304, "seconds": 0.1, "bytes_per_s": 42e6}
    assert written["clock_skew_s"] == -0.002
    keys = (
        "num_parameters",
        "messages_per_update",
        "predicted_steps_per_second",
        "predicted_one_host_steps_per_second",
    )
    assert [written[key] for key in keys] == [100, 5, 2.0, 1.0]
    many = [replace(ALPHA, host=f"n{i}", ranks=[i]) for i in range(9)]
    assert "rank 3 on n3, 5 hosts more);" in found(*many, network=NETWORK).line()


def test_only_rank_0_prints(tmp_path):
    to = Told(tmp_path)
    found(ALPHA, BETA, rank=1, network=NETWORK, warnings=["W"]).report(to)
    assert (to.said, to.warned, list(tmp_path.iterdir())) == ([], [], [])


def test_an_unwritable_file_raises_an_error(tmp_path):
    with pytest.raises(RunError, match=r"preflight\.json could not be written \(No such file"):
        found(ALPHA).write(tmp_path / "gone" / FILE)


def test_a_world_of_one_is_compared_with_itself():
    with Comm(World()) as comm:
        alone = preflight(comm, RUN)
    assert (alone.world_size, alone.network, alone.warnings) == (1, None, [])
    assert alone.hosts[0].processor == processor() != ""
    assert alone.hosts[0].device == kind_of(torch.device("cpu")) == "cpu"


def learner_of(run):
    spec, alone = env_spec(run.task, run.env), Comm(World())
    if isinstance(run.algorithm, DQNConfig):
        return DQN(run, QPolicy(spec, run.network, run.algorithm), alone)
    return PPO(run, Policy(spec, run.network), alone)


def look(run, hosts=2, learner=None):
    layout = Layout(ranks=4, hosts=hosts, cores=2, bandwidth=1e9)
    comm = Comm(World(rank=0, size=4, local_rank=0, local_size=2))
    return forecast(run, comm, learner or learner_of(run), layout, 0.002)


def learner_bits(learner):
    """Parameters and the optimizer's state."""
    return [learner.flat.params, *learner.optimizer.state().values()]


def test_the_forecast_measures_predicts_and_leaves_learner_and_random_streams_alone():
    learner = learner_of(RUN)
    held = [tensor.clone() for tensor in learner_bits(learner)]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    ahead = look(RUN, learner=learner)
    assert all(torch.equal(a, b) for a, b in zip(held, learner_bits(learner), strict=True))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert isinstance(ahead, Forecast), ahead
    assert before == after
    assert ahead.messages_per_update == 3
    assert ahead.num_parameters > 0
    assert 0 < ahead.steps_per_second < 8 * 8 / (3 * 0.0015), "faster than its messages allow"
    assert ahead.one_host_steps_per_second > 0
    assert "on one host of 2 ranks" in ahead.line


@pytest.mark.parametrize("changes", [{}, {"noisy": True, "value_distribution": "categorical"}], ids=["plain", "noisy"])
def test_the_forecast_of_a_replay_counts_its_gradient_steps(changes, tmp_path):
    config = DQNConfig(batch_size=64, num_steps=4, updates_per_step=0.25, replay_path=str(tmp_path / "replay"))
    run = override(Run(task="CartPole-v1", algo="dqn", num_envs=16, algorithm=config), changes)
    ahead = look(run)
    assert isinstance(ahead, Forecast), ahead
    assert ahead.messages_per_update == 17, "16 gradient steps per 64 steps, and the statistics"
    assert 0 < ahead.steps_per_second < 64 / (17 * 0.0015), "faster than its messages allow"
    seldom = look(override(run, {"num_envs": 4, "num_steps": 1, "updates_per_step": 0.125}))
    assert isinstance(seldom, Forecast), seldom
    assert seldom.messages_per_update == 1.5


def test_a_slow_network_is_advised_against():
    layout = Layout(ranks=4, hosts=2, cores=2)
    comm = Comm(World(rank=0, size=4, local_rank=0, local_size=2))
    slow, fast = (forecast(RUN, comm, learner_of(RUN), layout, seconds) for seconds in (0.5, 1e-9))
    assert isinstance(slow, Forecast)
    assert isinstance(fast, Forecast)
    assert "more nodes are slower here: 3 messages per update" in (slow.advice or "")
    assert slow.steps_per_second < fast.steps_per_second


class Broken:
    def __init__(self, num_envs):
        raise RuntimeError("no licence")


def test_what_cannot_be_measured_ahead_is_no_reason_to_stop():
    said = look(replace(RUN, task=f"{__file__}:Broken"), learner=learner_of(RUN))
    assert isinstance(said, str)
    assert said.startswith("no prediction: ConfigError: ")
    assert "no licence" in said
    said = look(replace(RUN, task="CartPole-v1", env=EnvConfig(vectorization="async")))
    assert said == "no prediction: a process per environment (env.vectorization=async) is not measured ahead"
    said = look(replace(RUN, compile=True), learner=learner_of(RUN))
    assert said == "no prediction: compiled gradient steps (compile=true) are not measured ahead"


def test_the_probe_prints_a_table():
    ahead = Forecast(
        num_parameters=1,
        messages_per_update=81,
        steps_per_second=2.0,
        one_host_steps_per_second=1.0,
        line="L",
        advice=None,
    )
    gpu = replace(BETA, ranks=[2], device="NVIDIA H100", interface=None)
    said = list(probe.lines(found(ALPHA, gpu, network=NETWORK, forecast=ahead, warnings=["W"])))
    assert said == [
        "3 ranks on 2 hosts",
        "  host   ranks  cores  device       processor  interface  clock",
        "  alpha  0-1    4      cpu          A          eth0       (reference)",
        "  beta   2      8      NVIDIA H100  A          -          -2.0 ms",
        "the same on all ranks",
        "  python 3.11.7",
        "a sum over all ranks",
        "         32 bytes:     0.500 ms",
        "  4,194,304 bytes:   100.000 ms, 42 MB/s from each host",
        "training, such as the recipe cartpole",
        "  L; 81 messages per update",
        "warning: W",
    ]
    assert next(iter(probe.lines(found(replace(ALPHA, ranks=[0]))))) == "1 rank on 1 host"
