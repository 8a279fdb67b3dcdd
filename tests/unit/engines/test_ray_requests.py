"""What `--on ray` asks for, without Ray: flags, environments of ranks, submitted jobs, and the error without Ray."""

import contextlib
import json
import shlex
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from lockstep.cli import main
from lockstep.cli.parser import parser
from lockstep.engines.ray import call
from lockstep.engines.ray.actor import Host
from lockstep.engines.ray.arguments import RayRequest, ray_request, runtime_env_of
from lockstep.engines.ray.attempt import rank_children
from lockstep.engines.ray.placement import PlacedRank
from lockstep.errors import ConfigError
from lockstep.launch.node_flags import bounds_of


def requested(words: str) -> RayRequest | None:
    return ray_request(parser({}).parse_args(["train", "cartpole", *shlex.split(words)]))


def test_ranks_are_bundles_of_one_rank():
    request = requested("--on ray --ranks 2:4 --cpus-per-rank 3 --resources-per-rank disk=0.5 --gpus-per-rank 1")
    assert request is not None and (request.minimum, request.maximum, request.ranks) == (2, 4, 4)
    assert request.bundle == {"CPU": 3.0, "GPU": 1.0, "disk": 0.5}
    assert request.strategy == "PACK"


def test_nodes_are_bundles_of_several_ranks_on_different_nodes():
    request = requested("--on ray --nnodes 3 --nproc-per-node 2")
    assert request is not None and request.ranks == 6
    assert request.bundle == {"CPU": 2.0}
    assert request.strategy == "STRICT_SPREAD"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--on ray --ranks 4:2", "use 2:4"),
        ("--on ray --ranks auto", "--ranks auto must be N or MIN:MAX"),
        ("--on ray --ranks 2 --nnodes 2", "both count ranks"),
        ("--on ray --nproc-per-node 2", "add --nnodes N"),
        ("--on ray --rdzv-endpoint alpha:5555", "--rdzv-endpoint is for launchers that run on each node"),
        ("--on ray --address ray://head:10001", "submit a job from anywhere"),
        ("--on ray --strategy NEAR", "--strategy NEAR must be one of"),
        ("--on ray --resources-per-rank GPU=1", "--gpus-per-rank instead"),
        ("--on ray --resources-per-rank disk", "not NAME=AMOUNT"),
        ("--on ray --runtime-env '{'", "is not JSON"),
        ("--on ray --runtime-env '{\"env_vars\": [1]}'", "must be a mapping from names to text"),
        ("--cpus-per-rank 2", "add --on ray"),
    ],
)
def test_contradicting_flags_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        requested(words)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
@pytest.mark.parametrize("command", ["train CartPole-v1", "train CartPole-v1 --seeds 0:2", "submit CartPole-v1"])
def test_without_ray_the_error_has_the_line_that_installs_it(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = " --address http://HEAD:8265" if "submit" in command else ""
    assert main.main(shlex.split(f"{command} --on ray{address}")) == 2
    assert "Ray is not installed; pip install 'lockstep-rl[ray]'" in capsys.readouterr().err
    assert list(tmp_path.glob("runs/*/run.yaml")) == []


def test_ranks_of_a_node_see_its_gpus_in_rank_order(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    nodes = [("a", ("1",)), ("a", ("0",)), ("b", ("3",))]
    placed = [
        PlacedRank(None, Host(node_id=node, address=f"10.0.0.{node}", name=node, gpus=gpus, port=5000), local, size, at)
        for (node, gpus), local, size, at in zip(nodes, (0, 1, 0), (2, 2, 1), (0, 0, 1), strict=True)
    ]
    children = rank_children(placed, RayRequest(minimum=3, maximum=3, cpus=2), {"NCCL_DEBUG": "INFO"}, ["/code"])
    assert [child.environment["CUDA_VISIBLE_DEVICES"] for child in children] == ["1,0", "1,0", "3"]
    assert {child.environment["NCCL_DEBUG"] for child in children} == {"INFO"}
    assert {child.environment["OMP_NUM_THREADS"] for child in children} == {""}  # not the number that Ray has set
    ranks = [child.rank for child in children]
    assert [(one.local_rank, one.local_size, one.placement.first_rank) for one in ranks if one] == [
        (0, 2, 0), (1, 2, 0), (0, 1, 2)
    ]  # fmt: skip
    assert {(one.placement.address, one.placement.num_nodes) for one in ranks if one} == {("10.0.0.a", 2)}
    assert len({one.placement.token for one in ranks if one}) == 1


@pytest.mark.parametrize(("timeout_s", "placement_s"), [(None, 300.0), (7.0, 7.0), (900.0, 300.0)])
def test_the_time_of_a_call_includes_the_placement(timeout_s, placement_s, monkeypatch):
    known = {}

    @contextlib.contextmanager
    def placed_ranks(request, cancelled):
        known["placement_s"], known["placed_at"] = request.join_timeout_s, time.monotonic()
        yield []

    monkeypatch.setattr(call, "connected", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(call, "_packed", lambda fn, args: b"")
    monkeypatch.setattr(call, "placed_ranks", placed_ranks)
    monkeypatch.setattr(call, "rank_children", lambda *_: [])
    monkeypatch.setattr(call, "RemoteRanks", lambda placed, children: SimpleNamespace(ranks=[]))
    monkeypatch.setattr(call, "wait_for_ranks", lambda ranks, bounds, **given: known.update(given))
    assert call.launch(print, ranks=2, timeout_s=timeout_s) == []
    assert known["placement_s"] == placement_s
    assert known["timeout_s"] == timeout_s
    assert known["since"] <= known["placed_at"]


def test_environment_variables_are_text(tmp_path):
    (tmp_path / "env.yaml").write_text("env_vars: {A: 1, B: true, C: }")
    assert runtime_env_of(str(tmp_path / "env.yaml")) == {"env_vars": {"A": "1", "B": "true", "C": ""}}
    assert runtime_env_of('{"env_vars": null}') == {"env_vars": {}}


def test_submitted_job_trains_on_ray(capsys):
    words = "submit CartPole-v1 --on ray --address http://head:8265 --nnodes 2:4 --nproc-per-node 2 --gpus-per-node 2"
    words += " --set num_shards=8 --name job --run-dir /shared/job --grace-s 60 --dry-run"
    assert main.main([*shlex.split(words), "--runtime-env", '{"working_dir": ".", "env_vars": {"A": "1"}}']) == 0
    given = shlex.split(capsys.readouterr().out)
    assert given[-4:-1] == ["--", "sh", "-c"]
    threads, _, entrypoint = given[-1].partition("; exec ")
    assert threads == "unset OMP_NUM_THREADS"
    assert given[:4] == ["ray", "job", "submit", "--no-wait"]
    environment = json.loads(given[given.index("--runtime-env-json") + 1])
    assert environment["working_dir"] == "."
    assert environment["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "75", "RAY_USAGE_STATS_ENABLED": "0", "A": "1"}
    trained = shlex.split(entrypoint)
    args = parser({}).parse_args(trained[trained.index("train") :])
    request = ray_request(args)
    assert request is not None and bounds_of(args).grace_s == 60
    assert (request.minimum, request.maximum, request.ranks_per_bundle, request.gpus) == (2, 4, 2, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--address http://HEAD:8265"),
        ("--address head:6379", "is not that of a dashboard"),
        ("--address http://h:1 --nproc-per-node 2 --gpus-per-node 3", "a rank takes whole GPUs"),
        ("--address http://h:1 --port 5555", "--port is for launchers"),
    ],
)
def test_job_that_could_not_run_is_refused(words, message, capsys):
    assert main.main(shlex.split(f"submit CartPole-v1 --on ray {words}")) == 2
    assert message in capsys.readouterr().err
