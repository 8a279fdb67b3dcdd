"""The command line of the workflows that train with other libraries, without these libraries."""

import pytest
import yaml

from lockstep.envs import isaac
from lockstep.errors import ConfigError
from lockstep.torch.envs.isaac_launch import rank_seed
from lockstep.workflows import library_arguments
from lockstep.workflows.library_arguments import parse, read_agent_file, without_ranks
from lockstep.workflows.library_command import main, set_library_environment
from lockstep.workflows.library_run import run_name
from lockstep.world import World


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path):
    """All libraries and Isaac Lab seem to be installed; agent.yaml exists."""
    monkeypatch.setattr(library_arguments, "find_spec", lambda name: object())
    monkeypatch.setattr(isaac, "is_installed", lambda: True)
    monkeypatch.setattr(isaac, "task_ids", lambda: ("Isaac-Ant", "Isaac-Cartpole"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text("seed: 1\n")


def test_commands_of_isaac_lab_are_understood():
    request, ranks = parse("skrl", ["--task=Isaac-Cartpole-v0", "--headless", "--ranks", "2", "--distributed"])
    assert (request.task, request.agent, request.num_envs, ranks) == ("Isaac-Cartpole", "skrl_cfg_entry_point", None, 2)
    assert request.notes == ("task Isaac-Cartpole-v0 is called Isaac-Cartpole in the installed Isaac Lab",)
    request, ranks = parse("rl_games", ["--task", "Isaac-Ant", "--num_envs", "8", "--seed=3", "physics=newton_mjwarp"])
    assert (request.num_envs, request.seed, request.overrides, ranks) == (8, 3, ("physics=newton_mjwarp",), 0)


def test_other_tasks_need_a_config_file():
    request, _ = parse("rsl_rl", ["--task=Pendulum-v1", "--agent", "agent.yaml", "--max-iterations=2"])
    assert (request.agent, request.num_envs, request.max_iterations) == ("agent.yaml", 64, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to train; name a task"),
        (["--task=Isaac-Ant", "--distributed"], "--distributed, but no launcher started this process"),
        (["--task=Isaac-Ant", "--ml_framework", "jax"], "--ml_framework jax: rl_games trains with torch"),
        (["--task=Isaac-Ant", "--num_envs=0"], "0 must be at least 1"),
        (["--task=Isaac-Ant", "--max_iterations=x"], "x is not a whole number"),
        (["--task=Isaac-Ant", "--agent=none.yaml"], "--agent none.yaml: the file does not exist"),
        (["--task=Isaac-Nothing"], "task=Isaac-Nothing does not exist"),
        (["--task=Pendulum-v1"], "publishes no settings for rl_games"),
        (["--task=Pendulum-v1", "--agent=name"], "--agent name is no YAML file"),
        (["--task=Pendulum-v1", "--agent=agent.yaml", "env.x=1"], "env.x=1: only tasks of Isaac Lab"),
        (["--task=Isaac-Ant", "--no-such-flag"], "unrecognized arguments: --no-such-flag; see python -m"),
        (["--taks=Isaac-Ant"], "unrecognized arguments: --taks=Isaac-Ant; did you mean --task or --ranks?"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words, message, capsys):
    assert main("rl_games", lambda run: None, words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed: \xe9\n", "cannot read agent.yaml: 'utf-8' codec can't decode byte 0xe9"),
        (b"params:\n", "--agent agent.yaml: params=None must hold the settings of rl_games by name"),
        (b"params: {seed: abc}\n", "--agent agent.yaml: seed=abc must be a whole number of at least 0"),
        (b"- 1\n", "--agent agent.yaml holds no settings"),
    ],
)
def test_agent_files_that_cannot_be_are_refused_before_the_run_directory(content, message, tmp_path, capsys):
    (tmp_path / "agent.yaml").write_bytes(content)
    assert main("rl_games", lambda run: None, ["--task=Pendulum-v1", "--agent=agent.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("seed", ["-1", "random"])
def test_a_seed_of_the_agent_file_that_ranks_cannot_use_gives_way_to_the_flag(seed, tmp_path):
    (tmp_path / "agent.yaml").write_text(f"params: {{seed: {seed}}}\n")
    words = ["--task=Pendulum-v1", "--agent=agent.yaml"]
    with pytest.raises(ConfigError, match=f"agent.yaml: seed={seed} must be .*; or give --seed S$"):
        parse("rl_games", words)
    request, _ = parse("rl_games", [*words, "--seed=3"])
    assert request.seed == 3
    assert read_agent_file("agent.yaml", needs_seed=False)["params"]["seed"] == yaml.safe_load(seed)


def test_run_directory_is_named_by_task_and_library():
    request, _ = parse("rsl_rl", ["--task=lockstep/Cartpole-v0", "--agent", "agent.yaml"])
    assert run_name(request) == "lockstep-Cartpole-v0-rsl_rl"


def test_missing_library_is_refused_with_its_install_line(monkeypatch):
    monkeypatch.setattr(library_arguments, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="rsl_rl is not installed: pip install rsl-rl-lib"):
        parse("rsl_rl", ["--task=Isaac-Ant"])


def test_ranks_and_run_directory_are_removed_from_the_command_of_a_rank():
    words = ["--task=T", "--ranks", "2", "--run-dir=x", "--distributed", "--seed", "3", "--run_dir", "y", "a=b"]
    assert without_ranks(words) == ["--task=T", "--seed", "3", "a=b"]


def test_seeds_of_ranks_differ_and_rank_0_keeps_the_seed():
    seeds = [rank_seed(42, rank) for rank in range(100)]
    assert seeds[0] == 42 and len(set(seeds)) == 100 and max(seeds) < 2**31 - 1
    assert seeds == [rank_seed(42, rank) for rank in range(100)] and rank_seed(43, 1) != seeds[1]


def test_libraries_find_the_variables_of_their_framework_only(monkeypatch):
    world = World(rank=1, size=2, local_rank=1, local_size=2, address="10.0.0.1", port=5)
    environment = {"RANK": "0", "WORLD_SIZE": "7", "MASTER_PORT": "9"}
    monkeypatch.setattr(library_arguments.__name__.rpartition(".")[0] + ".library_command.os.environ", environment)
    set_library_environment(world, "jax")
    assert environment == {"JAX_RANK": "1", "JAX_WORLD_SIZE": "2", "JAX_LOCAL_RANK": "1"}
    set_library_environment(world, "torch")
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_ADDR"]) == ("1", "2", "10.0.0.1")
