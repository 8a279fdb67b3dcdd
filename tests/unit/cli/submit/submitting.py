"""What `lockstep submit` prints, and programs of a cluster that are none."""

import sys
import textwrap
from pathlib import Path

from lockstep.cli import main as cli


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
