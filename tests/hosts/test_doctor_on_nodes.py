"""`lockstep doctor --nnodes`: what the ranks of two machines find out before they train, as a table."""

import pytest

DOCTOR = "lockstep doctor --nnodes 2 --nproc-per-node 2 --rdzv-endpoint alpha:5555"
TORCHRUN = (
    "python -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=alpha:5555 "
    "--rdzv_id=7 -m lockstep.cli.probe"
)


@pytest.mark.hosts
@pytest.mark.parametrize(("command", "ranks"), [(DOCTOR, 4), (TORCHRUN, 2)], ids=["ours", "torchrun"])
def test_two_machines_are_told_in_one_table(network, command, ranks):
    hosts = network(2).hosts
    nodes = [host.start(command.split()) for host in hosts]
    codes = [node.wait(within_s=120) for node in nodes]
    said = "\n".join(f"--- {node}\n{node.said}" for node in nodes)
    assert codes == [0, 0], said
    told = [line for node in nodes for line in node.said.splitlines()]
    assert told.count(f"{ranks} ranks on 2 hosts") == 1, said
    table = {line.split()[0]: line.split() for line in told if line.startswith(("  alpha ", "  beta "))}
    expected = {"0-1", "2-3"} if ranks == 4 else {"0", "1"}
    assert {table[name][1] for name in ("alpha", "beta")} == expected, said
    assert {row[-1] for row in table.values()} == {"(reference)", "ms"}, f"the clocks were not compared\n{said}"
    for words in ("a sum over all ranks", "MB/s from each host", "  predicted "):
        assert sum(words in line for line in told) == 1, said


@pytest.mark.hosts
def test_ranks_of_another_version_end_the_doctor_with_2(network):
    """Their nodes are alike; the ranks themselves compare what they import."""
    both = network(2)
    shadow = both.folder / "shadow" / "numpy-0.9.9.dist-info"
    shadow.mkdir(parents=True)
    (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.9.9\n")
    alpha, beta = both.hosts
    nodes = [alpha.start(TORCHRUN.split()), beta.start(TORCHRUN.split(), {"PYTHONPATH": str(shadow.parent)})]
    for node in nodes:
        node.wait(within_s=120)
    said = "\n".join(f"--- {node}\n{node.said}" for node in nodes)
    for node in nodes:
        (line,) = [line for line in node.said.splitlines() if line.startswith("lockstep: error:")]
        assert "(beta) differs from rank " in line or "(alpha) differs from rank " in line, said
        assert "numpy (" in line, said
        assert "0.9.9" in line, said
