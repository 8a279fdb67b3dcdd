"""One rank of `lockstep doctor --nnodes ...`: run the preflight and print it as a table.

Any launcher can start it: `torchrun ... -m lockstep.cli.probe`, `srun python -m lockstep.cli.probe`.
"""

import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lockstep.errors import PEER_DELAY_S, PeerError, exit_code_of
from lockstep.record.text import aligned, counted

if TYPE_CHECKING:
    from lockstep.preflight.compare import Preflight
    from lockstep.run import Run
    from lockstep.torch.comm import Comm
    from lockstep.torch.ppo import PPO
    from lockstep.world import World

_RECIPE = "cartpole"  # whose speed is predicted
_TIMEOUT_S = 60.0


def main() -> int:
    """Run the preflight with the other ranks; rank 0 prints it. Returns the exit code."""
    from lockstep.launch.child import die_with_launcher

    die_with_launcher()
    return exit_code_of(_print_preflight)


def _print_preflight() -> int:
    from lockstep.launch.torchrun import check_torchrun
    from lockstep.world import World

    world = World.from_environment()
    check_torchrun(world)
    probe = _probe_torch if find_spec("torch") is not None else _probe_jax
    try:
        found = probe(world)
    except PeerError:
        time.sleep(PEER_DELAY_S)
        raise
    if found.rank == 0:
        for line in lines(found):
            print(line)
    return 0


def lines(found: "Preflight") -> Iterator[str]:
    """The report: hosts, versions, network, predicted speed and warnings."""
    ranks, hosts = found.world_size, len(found.hosts)
    yield f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}"
    head = ("host", "ranks", "cores", "device", "processor", "interface", "clock")
    rows = [head, *(_row(found, index) for index in range(len(found.hosts)))]
    yield from aligned(rows, str.ljust)
    yield "the same on all ranks"
    yield "  " + ", ".join(f"{name} {version}" for name, version in found.versions.items())
    if (network := found.network) is not None:
        yield "a sum over all ranks"
        yield f"  {network.small.bytes:>9,} bytes: {network.small.seconds * 1e3:9.3f} ms"
        sent = f", {network.bytes_per_s / 1e6:,.0f} MB/s from each host" if network.bytes_per_s else ""
        yield f"  {network.large.bytes:>9,} bytes: {network.large.seconds * 1e3:9.3f} ms{sent}"
    if found.forecast or found.notes:
        yield f"training, such as the recipe {_RECIPE}"
        yield from (f"  {note}" for note in found.notes)
        if found.forecast:
            yield f"  {found.forecast.line}; {found.forecast.messages_per_update:g} messages per update"
    for warning in found.warnings:
        yield f"warning: {warning}"


def _probe_torch(world: "World") -> "Preflight":
    from lockstep.preflight.compare import add_forecast
    from lockstep.torch.comm import Comm
    from lockstep.torch.forecast import forecast
    from lockstep.torch.preflight import preflight

    run = _run(world, "torch")
    with Comm(world, timeout_s=_TIMEOUT_S) as comm:
        found = preflight(comm, run, measure=True)
        add_forecast(found, lambda layout, message_s: forecast(run, comm, _learner(run, comm), layout, message_s))
        return found


def _learner(run: "Run", comm: "Comm") -> "PPO":
    from lockstep.envs.make import env_spec
    from lockstep.run import override
    from lockstep.torch.comm import Comm
    from lockstep.torch.networks import Policy
    from lockstep.torch.ppo import PPO
    from lockstep.world import World

    alone = override(run, {"num_envs": comm.world.shard_size(run.num_envs, "num_envs"), "num_shards": 1})
    policy = Policy(env_spec(run.task, run.env), run.network).to(comm.device)
    return PPO(alone, policy, Comm(World(), device=run.device))


def _probe_jax(world: "World") -> "Preflight":
    from lockstep.jax.comm import Comm
    from lockstep.jax.preflight import preflight

    with Comm(world, timeout_s=_TIMEOUT_S) as comm:
        return preflight(comm, _run(world, "jax"), measure=True)


def _run(world: "World", ml_framework: str) -> "Run":
    """The recipe with a number of environments that divides among the ranks."""
    from lockstep import recipes
    from lockstep.run import override

    run = recipes.load(_RECIPE)
    shared = {"num_envs": world.size * max(1, run.num_envs // world.size), "timeout_s": _TIMEOUT_S}
    return override(run, shared | {"ml_framework": ml_framework})


def _row(found: "Preflight", index: int) -> tuple[str, ...]:
    host = found.hosts[index]
    ranks = f"{host.ranks[0]}-{host.ranks[-1]}" if len(host.ranks) > 1 else str(host.ranks[0])
    clock = f"{host.clock_skew_s * 1e3:+.1f} ms" if index else "(reference)"
    return host.host, ranks, str(host.cores), host.device, host.processor, host.interface or "-", clock


if __name__ == "__main__":
    from lockstep.launch.child import exit_process

    exit_process(main())
