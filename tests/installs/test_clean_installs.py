"""The wheel works where it is installed alone: with torch only, with JAX only, with neither, and without a compiler.

Packages come from wherever pip and uv get them here, in the versions of our locks; without an index the tests skip.
`make dist` runs this file on all Python versions that the machine has.
"""

import functools
import re
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from clean_environment import (
    DIST,
    INSTALLERS,
    PYTHONS,
    SMALL,
    UV,
    CleanEnvironment,
    uv_sources,
    wheel,
)

pytestmark = pytest.mark.slow

MAX_WHEEL_BYTES = 1_750_000
"""The wheel is source code, which grows with what it can do; data and tests would add more."""
WAYS = [(version, installer) for version in PYTHONS for installer in INSTALLERS[version]]
each_way = pytest.mark.parametrize(("version", "installer"), WAYS, ids=["-".join(way) for way in WAYS])


@pytest.fixture
def install():
    """`install(version, installer, extra)` makes a clean environment of up to 1 GB, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="clean-") as folder:
        yield functools.partial(CleanEnvironment, Path(folder))


def one_line_error(made: CleanEnvironment, *words: str) -> str:
    """The message of a command that is refused, without a traceback."""
    done = made.attempt(made.bin / "lockstep", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_wheel_has_the_package_and_no_tests():
    assert wheel().stat().st_size < MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel()) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"lockstep", "lockstep_rl"}
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|benchmarks)(/|\.|_)", name)]
    for needed in ("py.typed", "__init__.pyi", "jax/collectives/exchange.c", "cli/report/page/style.css"):
        assert f"lockstep/{needed}" in names


@pytest.mark.skipif(not DIST, reason="make dist builds it")
def test_sdist_has_the_source_and_no_tests():
    (path,) = wheel().parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= top
    assert not top & {"tests", "benchmarks", "docs", "runs"}


@each_way
def test_without_torch_jax_trains_cartpole_and_everything_around_it_works(install, version, installer):
    made = install(version, installer, "jax")
    assert "torch" not in made.installed()
    for name, words in (("one", []), ("two", ["--ranks", "2"])):
        summary = made.train(name, "--ml-framework", "jax", *words)
        assert (summary["status"], summary["ml_framework"]) == ("finished", "jax")
        assert summary["env_steps"] == 1024
    assert len({rank["params_fingerprint"] for rank in summary["ranks"]}) == 1
    assert "over 3 episodes" in made.run("lockstep", "evaluate", "one", "--episodes", "3")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    launcher = ["-m", "lockstep.launch.jax", "--nproc_per_node=2", "-m", "lockstep.train", "--task=CartPole-v1"]
    made.run("python", *launcher, "--distributed", "--ml_framework=jax", "--run-dir=three", *settings)
    example = ["examples/my_jax_env.py:MyJaxEnv", "--ml-framework", "jax", "--run-dir", "example"]
    made.run("lockstep", "train", *example, *settings)
    doctor = made.run("lockstep", "doctor")
    assert "torch is not installed" in doctor and "all-reduce between 2 ranks of this machine, jax" in doctor
    assert "sums in Python, 2 to 3 times the delay: no C compiler is found (cc, or CC)" in doctor
    error = one_line_error(made, "train", "cartpole")
    assert "ml_framework=torch" in error and "pip install" in error


@each_way
def test_without_jax_torch_trains_cartpole(install, version, installer):
    made = install(version, installer, "torch")
    assert not {"jax", "jaxlib", "optax"} & made.installed()
    summary = made.train("two", "--ranks", "2")
    assert (summary["status"], summary["ml_framework"]) == ("finished", "torch")
    assert "over 3 episodes" in made.run("lockstep", "evaluate", "two", "--episodes", "3")
    loop = made.run("python", "examples/my_checkpointed_loop.py", "--ranks", "2", "--updates", "2")
    assert "update 2:" in loop
    assert "jax is not installed" in made.run("lockstep", "doctor")
    if installer == "uv":  # a CPU build that is installed first is kept, whatever the index has
        planned = made.attempt(UV, "pip", "install", "--dry-run", "--python", made.bin / "python", made.wanted)
        assert planned.returncode == 0 and "torch" not in planned.stderr, planned.stderr
    error = one_line_error(made, "train", "cartpole", "--ml-framework", "jax")
    assert "ml_framework=jax" in error and "pip install" in error


@each_way
def test_with_neither_framework_commands_that_need_none_work(install, version, installer):
    made = install(version, installer, "")
    assert not {"torch", "jax"} & made.installed()
    number = wheel().name.split("-")[1]
    assert made.run("lockstep", "--version").strip() == f"lockstep {number}"
    assert made.run("python", "-c", "import lockstep; print(lockstep.__version__)").strip() == number
    assert "cartpole" in made.run("lockstep", "recipe")
    assert "def recipe" in made.run("lockstep", "recipe", "cartpole")
    made.run("lockstep", "check", "examples/my_env.py:MyEnv")
    doctor = made.run("lockstep", "doctor")
    assert "torch is not installed" in doctor and "jax is not installed" in doctor
    error = one_line_error(made, "train", "cartpole")
    assert "pip install 'lockstep-rl[torch]'" in error


@pytest.mark.skipif(not DIST, reason="make dist installs uv")
@pytest.mark.parametrize("version", PYTHONS)
def test_every_dependency_has_a_wheel_for_this_python(tmp_path, version):
    """So that an installation needs no compiler. Resolved from the index alone: no interpreter is needed."""
    words = [UV, "pip", "install", "--dry-run", "--target", tmp_path, "--python-version", version]
    words += ["--only-binary", ":all:", *uv_sources(), f"{wheel()}[jax]"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "+ jaxlib==" in done.stderr
