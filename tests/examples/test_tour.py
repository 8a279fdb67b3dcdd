"""The tour of `examples/README.md`: each file does what its first lines say."""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

pytestmark = pytest.mark.slow
CARTPOLE = ("--set", "total_steps=2048", "--set", "evaluate_episodes=2")


def test_sac_gives_ranks_equal_parameters_from_their_own_data(examples):
    import my_sac

    one, other = spawn(my_sac.train, 2, (argparse.Namespace(total_steps=1_200),), timeout_s=300)
    assert one == other and one["kept"] == 600


@pytest.mark.learning
def test_sac_learns(examples, python):
    told = python(examples / "my_sac.py", "--total-steps", 20_000)
    first, *_, last = (int(found) for found in re.findall(r"mean return (-?\d+)", told))
    assert first < -900 and last > -400, told


def test_fsdp_ranks_hold_parts_and_take_the_steps_of_one_rank(examples):
    import my_fsdp_loop

    given = argparse.Namespace(updates=20, width=32, device="cpu", out="runs/whole.pt")
    (alone,) = spawn(my_fsdp_loop.train, 1, (given,), timeout_s=300)
    one, other = spawn(my_fsdp_loop.train, 2, (given,), timeout_s=300)
    assert one == other
    assert one["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert one["numbers_held"] < 0.6 * alone["numbers_held"]
    assert Path("runs/whole.pt").exists()


def test_jax_ranks_take_the_steps_of_one_rank(examples, python):
    pytest.importorskip("jax")
    told = [python(examples / "my_jax_loop.py", "--ranks", ranks, "--updates", 20) for ranks in (1, 2)]
    alone, two = ([float(found) for found in re.findall(r"mean return (\S+)", one)] for one in told)
    assert alone == pytest.approx(two, abs=1e-3) and alone[-1] > alone[0]
    launched = python("-m", "lockstep.launch.jax", "--nproc_per_node=2", examples / "my_jax_loop.py", "--updates", 20)
    assert launched.count("update 20: ") == 1


@pytest.fixture
def service(examples, python):
    """`service(path, body)` answers a request to the service of a short run: status and decoded body."""
    for package in ("fastapi", "uvicorn", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    python("-m", "lockstep.cli", "train", "cartpole", "--run-dir", "runs/served", *CARTPOLE)
    python("-m", "lockstep.cli", "export", "runs/served", "--format", "onnx")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--app-dir",
        str(examples),
        "my_service:app",
        "--port",
        url.split(":")[2],
    ]

    def answer(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    environment = os.environ | {"POLICY": "runs/served/policy.onnx"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert any("running on" in line for line in process.stderr)
        yield answer
        process.terminate()


def test_service_acts_as_the_policy_and_refuses_wrong_sizes(service):
    from lockstep.torch import load_player

    observations = [[0.0, 0.1, 0.02, -0.1], [0.5, -1.0, -0.1, 1.0], [0.0, 0.0, 0.2, 0.5]]
    _, player = load_player("runs/served")
    expected = [int(player.act(np.array(observation, np.float32))) for observation in observations]
    assert service("/act", {"observations": observations}) == (200, {"actions": expected})
    assert service("/act", {"observations": []}) == (200, {"actions": []})
    assert service("/act", {"observations": [[1.0, 2.0]]}) == (422, {"detail": "observation 0 has 2 numbers, not 4"})
    assert service("/")[1]["spec"]["observation_size"] == 4


def test_a_log_becomes_a_file_that_scores(examples):
    pytest.importorskip("onnxscript")
    printed = log_to_onnx(examples, STEPS="2048", EPISODES="10", EPOCHS="1")
    assert re.search(r"^\{.*\} -> \w+$", printed, re.MULTILINE), printed


@pytest.mark.slow
def test_the_log_supports_an_estimate_of_the_policy(examples):
    """The demo of the README, of the page on logged data and of the examples: its verdict recommends an estimator."""
    pytest.importorskip("onnxscript")
    printed = log_to_onnx(examples)
    verdict = json.loads(Path("new/folder/runs/logged/estimates.json").read_text())["verdict"]
    assert verdict["trajectory"] and verdict["decision"] and verdict["reasons"] == {}, printed
    assert sum("more than" in line for line in verdict["words"]) == 2, printed


def log_to_onnx(examples, **shorter):
    """What the example prints, started in a folder of its own."""
    environment = os.environ | shorter
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(examples / "log_to_onnx.sh"), "new/folder"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_notebook_runs(examples, python):
    pytest.importorskip("matplotlib")
    notebook = json.loads((examples / "plot_run.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(cells).replace("20_000", "8_192")
    Path("cells.py").write_text(f"import matplotlib\nmatplotlib.use('Agg')\n{code}\nfigure.savefig('figure.png')\n")
    python("-W", "ignore", "cells.py")
    assert Path("figure.png").stat().st_size > 10_000
