"""Policy files without parameters, which name no network but fit a recipe's task and algorithm."""

from pathlib import Path

from lockstep import recipes
from lockstep.envs.make import env_spec
from lockstep.session import policy_file
from lockstep.session.policy_file import PolicySpec


def write_empty(path: Path, recipe: str = "cartpole") -> None:
    """Write one, for a recipe of PPO that does not normalize observations."""
    run = recipes.load(recipe)
    about = PolicySpec(task=run.task, spec=env_spec(run.task, run.env), network=run.network, algorithm=run.algorithm)
    policy_file.write(path, {}, None, about.to_dict())
