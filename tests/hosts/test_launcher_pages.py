"""What docs/launchers tells people to type on each host is typed there; only the training is shorter.

` ```sh alpha ` is typed on alpha, ` ```sh all ` on every host of the page, ` ```sh ` on any. Blocks for several hosts
that follow each other are typed at once. ` ```bash ` is for commands that cannot run here: their syntax is checked.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from network import NAMES, Command, Network
from small_runs import ended_well, small

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "rules"))
from pages import Block, blocks  # noqa: E402

PAGES = sorted((ROOT / "docs" / "launchers").glob("*.md"))
TRAINS = re.compile(r"(^|\s)(lockstep (train|submit)|-m lockstep\.train)\b")
# What a page's commands need that this machine may lack.
NEEDS = ("mpirun", "srun", "torchx")
# Tests run as root, on fewer cores than ranks.
OURS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def typed(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh"]


def smaller(body: str) -> str:
    """The same commands, and little to train."""
    lines = body.replace("\\\n", " ").splitlines()
    settings = shlex.join(
        f"--set={value}" for value in small() if value != "--set"
    )  # torchx refuses a repeated `--set`
    return "\n".join(
        f"{line} {settings}" if TRAINS.search(line) and "--dry-run" not in line else line
        for line in lines
        if line[:1] != "#"
    )


def type_all(network: Network, page: Path) -> None:
    """Block by block; those for hosts that nothing runs on begin while others run."""
    running: dict[str, Command] = {}
    everywhere = [host.name for host in network.hosts]
    for block in blocks(page):
        if block.language == "sh":
            names = everywhere if block.file == "all" else [block.file or "alpha"]
            if not block.file or any(name in running for name in names):
                ended_well(*running.values())
                running.clear()
            for name in names:
                host = network.hosts[NAMES.index(name)]
                running[name] = host.start(["bash", "-euo", "pipefail", "-c", smaller(block.body)], OURS)
            if not block.file:
                ended_well(*running.values())
                running.clear()
        elif block.file:
            (network.shared / block.file).write_text(block.body)
    ended_well(*running.values())


@pytest.mark.hosts
@pytest.mark.parametrize("page", [page for page in PAGES if typed(page)], ids=lambda page: page.stem)
def test_what_a_page_tells_is_typed_on_its_hosts(page, network):
    text = "".join(block.body for block in typed(page))
    for command in NEEDS:
        if re.search(rf"^{command}\b", text, re.MULTILINE) and shutil.which(command) is None:
            pytest.skip(f"needs the command `{command}`")
    mentioned = {block.file for block in typed(page)} | set(re.findall(r"\b(alpha|beta|gamma|delta)\b", text))
    hosts = network(max((NAMES.index(name) + 1 for name in mentioned if name in NAMES), default=2))
    hosts.serve_shells()
    type_all(hosts, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_cannot_run_here_are_whole(page):
    for block in blocks(page):
        assert block.language != "sh" or block.file in ("", "all", *NAMES), f"no such host: {block.file}"
        if block.language == "bash":
            checked = subprocess.run(["bash", "-n"], input=block.body, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, f"{block.body}\n{checked.stderr}"


def test_every_launcher_has_a_page():
    assert {page.stem for page in PAGES} >= {
        "README", "lockstep", "shared-file", "torchrun", "torch-distributed-launch", "slurm", "mpi", "kubernetes",
        "ssh", "torchx",
    }  # fmt: skip


def test_smaller_reaches_what_trains():
    assert smaller("lockstep train cartpole").endswith("startup_timeout_s=120")
    assert smaller("python -m torch.distributed.run \\\n  -m lockstep.train --task=X").endswith("startup_timeout_s=120")
    assert smaller("# a note\nlockstep doctor --nnodes 2") == "lockstep doctor --nnodes 2"
