"""What `lockstep submit` prints, stand-ins for programs of a cluster, and the schemas of Kubernetes' objects."""

import json
import re
import sys
import textwrap
from pathlib import Path

from lockstep.cli import main as cli

_SCHEMAS = Path(__file__).parents[3] / "data" / "kubernetes"


def text_of(capsys, *words) -> str:
    """What a dry run prints."""
    assert cli.main(["submit", *words, "--dry-run"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal(capsys, *words, dry_run: bool = True) -> str:
    """What is said about arguments that cannot be; nothing may have been printed."""
    code = cli.main(["submit", *words, *(["--dry-run"] if dry_run else [])])
    assert code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("lockstep: error: ") and told.err.count("\n") == 1
    return told.err


def program(folder: Path, name: str, source: str, interpreter: str = sys.executable) -> Path:
    """A stand-in for a program, to be put on PATH."""
    path = folder / name
    path.write_text(f"#!{interpreter}\n{textwrap.dedent(source)}")
    path.chmod(0o755)
    return path


def pods_of(made):
    """Every pod of an object."""
    kind, spec = made["kind"], made["spec"]
    if kind == "Job":
        yield spec["template"]["spec"]
    elif kind in ("JobSet", "TrainingRuntime"):
        for replicated in (spec if kind == "JobSet" else spec["template"]["spec"])["replicatedJobs"]:
            yield replicated["template"]["spec"]["template"]["spec"]
    elif kind == "RayJob":
        cluster = spec["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            yield group["template"]["spec"]
    elif kind == "PyTorchJob":
        for replica in spec["pytorchReplicaSpecs"].values():
            yield replica["template"]["spec"]


def as_started(command: list[str], environment: dict[str, str]) -> list[str]:
    """The words of a container's command as Kubernetes starts them, with the container's environment variables.

    `$$` is a `$`, `$(NAME)` is the value of a variable, and stays where there is none; a shell's quotes do not matter.
    """

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else environment.get(found[1], found[0])

    return [re.sub(r"\$\$|\$\(([^)]*)\)", value, word) for word in command]


def published_schemas():
    """The definition of each kind of object by name, and all definitions."""
    files = [json.loads((_SCHEMAS / name).read_text()) for name in ("published.json", "rayjob.json")]
    names = {kind: name for file in files for kind, name in file["kinds"].items()}
    return names, {name: body for file in files for name, body in file["$defs"].items()}
