"""Our settings for an agent configuration of another library."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from lockstep.config.agents.reader import AgentReader, AgentSettings
from lockstep.config.agents.rl_games import read_rl_games
from lockstep.config.agents.rsl_rl import read_rsl_rl
from lockstep.config.agents.sb3 import read_sb3
from lockstep.config.agents.skrl import read_skrl
from lockstep.errors import ConfigError

LIBRARIES: Mapping[str, Callable[[AgentReader, int], None]] = {
    "skrl": read_skrl,
    "rsl_rl": read_rsl_rl,
    "rl_games": read_rl_games,
    "sb3": read_sb3,
}
"""What reads the configurations of a library, by its name.

Of those that a task publishes, the first one is the default: on Isaac Lab's cart-pole skrl's settings learn in the
fewest steps, and those of rl_games depend most on the seed."""


def agent_settings(library: str, config: Mapping[str, Any], num_envs: int) -> AgentSettings:
    """Our settings for an agent configuration.

    Args:
        library: a key of `LIBRARIES`.
        config: the whole configuration as nested mappings, as the library's YAML file or class has it.
        num_envs: environments over all ranks; some libraries count transitions where we count minibatches.

    Raises:
        ConfigError: the library is not known, or a key has no counterpart; names the key and its value.
    """
    if library not in LIBRARIES:
        raise ConfigError(f"--agent {library} is not read; known are {', '.join(LIBRARIES)}")
    if library == "rl_games":
        config = _params(config)
    reader = AgentReader(library, config)
    LIBRARIES[library](reader, num_envs)
    return reader.finish()


def _params(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What rl_games reads of its file: `params`, and `pbt` beside it."""
    if "params" not in config:
        return config
    params = config["params"]
    if not isinstance(params, Mapping):
        raise ConfigError(f"the rl_games configuration has params={params!r}: it must hold settings")
    for name in config.keys() - {"params", "pbt"}:
        raise ConfigError(
            f"the rl_games configuration has {name} beside params, where rl_games does not read it; write it below "
            "params, or remove it"
        )
    return {**cast(Mapping[str, Any], params), "pbt": config.get("pbt", {})}
