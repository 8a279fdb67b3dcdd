"""What the Tab key offers: bash is really asked, with the script that `lockstep completion bash` prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.recipes import names

BIN = str(Path(sys.executable).parent)
ASK = """
eval "$(lockstep completion bash)"
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMPREPLY=()
    _python_argcomplete lockstep 2>/dev/null
    echo "${COMPREPLY[@]}"
done
"""
EXPECTED = {
    "lockstep tr": ["train"],
    "lockstep offline ": ["prepare", "train", "evaluate", "record"],
    "lockstep train cartpole_d": ["cartpole_dqn"],
    "lockstep train ": sorted([*names(), "mine.py", "runs/"]),
    "lockstep train cartpole --ra": ["--ranks"],
    "lockstep train cartpole --algo ": ["ppo", "dqn", "sac", "td3"],
    "lockstep train cartpole --set learning_": ["learning_rate=", "learning_rate_schedule="],
    "lockstep train cartpole_dqn --set prior": ["prioritized=", "priority_exponent=", "priority_eps="],
    "lockstep train cartpole_dqn --set double=": ["true", "false"],
    "lockstep train mine.py --set non_finite=s": ["stop", "skip"],
    "lockstep train mine:Env --algo sac --set layer": ["layer_norm="],
    "lockstep offline prepare log.jsonl --set num": ["num_samples="],
    "lockstep offline prepare log.jsonl --set skip_box_cox=": ["true", "false"],
    "lockstep offline train data --set cql": ["cql_alpha="],
    "lockstep train --resume runs/": ["runs/new", "runs/old"],
    "lockstep evaluate ": ["runs/new", "runs/old", "runs/"],
    "lockstep recipe po": ["pong", "pong_envpool", "pong_ppo", "pong_small"],
    "lockstep completion ": ["bash", "zsh", "fish"],
}


def test_bash_is_offered_commands_recipes_flags_settings_and_runs(tmp_path):
    for age, name in enumerate(("new", "old")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.yaml").touch()
        os.utime(tmp_path / "runs" / name / "run.yaml", (1000 - age, 1000 - age))
    (tmp_path / "mine.py").write_text("raise SystemExit('completion ran this')")
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK],
        input="\n".join(EXPECTED) + "\n",
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = dict(zip(EXPECTED, map(str.split, done.stdout.splitlines()), strict=True))
    told["lockstep train "].sort()  # files lie on the disk in any order
    assert told == EXPECTED


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --command")]
)
def test_each_shell_has_its_script(shell, word, capsys):
    assert cli.main(["completion", shell]) == 0
    assert word in capsys.readouterr().out


def test_another_shell_is_refused(capsys):
    assert cli.main(["completion", "tcsh"]) == 2
    assert "shell tcsh must be one of bash, zsh, fish" in capsys.readouterr().err


def test_nothing_of_it_is_imported_unless_a_shell_asks():
    code = "import sys; from lockstep.cli.main import main; main(['recipe']); sys.exit('argcomplete' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
