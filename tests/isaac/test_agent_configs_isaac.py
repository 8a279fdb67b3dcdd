"""All agent configurations of the installed Isaac Lab: each becomes a run, or is refused by the name of a key."""

import importlib
import re
from collections import Counter
from importlib.util import find_spec

import gymnasium
import pytest

from lockstep.config.agents.settings import LIBRARIES, agent_settings
from lockstep.errors import ConfigError
from lockstep.run import Run, override
from lockstep.torch.envs.published_agents import _plain

pytestmark = [pytest.mark.isaac, pytest.mark.filterwarnings("default")]  # Isaac Lab uses what is deprecated
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)
_SUFFIX = "_cfg_entry_point"
_REASONS = (
    r"rnn|RNNModel|gru|recurrent|cnn|conv|CNNModel|one block of linear layers|only PPO|its own PPO|on-policy runner|"
    r"task's own code|torchrl|reads the environment"
)


@pytest.fixture(scope="module")
def configs():
    importlib.import_module("isaaclab_tasks")
    utils = importlib.import_module("isaaclab_tasks.utils")
    found = []
    for spec in list(gymnasium.registry.values()):
        for key in spec.kwargs:
            if key.endswith(_SUFFIX) and key != f"env{_SUFFIX}" and "robomimic" not in key:
                config = utils.resolve_presets(utils.load_cfg_from_registry(spec.id, key))
                plain = _plain(config if isinstance(config, dict) else config.to_dict())
                found.append((spec.id, key.removesuffix(_SUFFIX), plain))
    return found


def test_all_are_read(configs):
    assert len(configs) == 206
    runs, refusals = Counter(), []
    for task, name, config in configs:
        library = next((library for library in LIBRARIES if name.startswith(library)), name)
        num_envs = config["params"]["config"]["minibatch_size"] if library == "rl_games" else 4096
        try:
            found = agent_settings(library, config, num_envs)
        except ConfigError as error:
            refusals.append((task, name, str(error)))
            continue
        override(Run(task="lockstep/Cartpole-v0", num_envs=num_envs), found.settings)
        runs[library] += 1
    assert runs == {"rl_games": 29, "skrl": 42, "rsl_rl": 79, "sb3": 7}
    unexplained = [row for row in refusals if not re.search(_REASONS, row[2])]
    assert not unexplained
