"""Ranks of a script, and of the `lockstep` program, end when torchrun's agent is killed, which does not end them."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real_start

AGENT = """
import os, subprocess, sys
variables = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **variables, **address}).wait()
"""
WAITS = """
def waits(*_, **__):
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
SCRIPT = f"""
import os, time, lockstep, lockstep.launch.torchrun
{WAITS}
lockstep.launch.torchrun.check_torchrun = waits
lockstep.train("CartPole-v1")
"""
PROGRAM = f"""
import os, time
from lockstep.cli import main
{WAITS}
main.main = waits
main.console()
"""


@pytest.mark.parametrize("rank", [SCRIPT, PROGRAM], ids=["script", "program"])
def test_a_rank_ends_with_the_agent(rank, gone):
    clean = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    with subprocess.Popen([sys.executable, "-c", AGENT, rank], env=clean, stdout=subprocess.PIPE, text=True) as agent:
        pid = next(int(line) for line in agent.stdout if line.strip().isdecimal())
        agent.kill()
        assert gone([pid], within_s=10)
