"""What the parameters in an exported file of continuous actions mean, as docs/logged-data.md says it."""

import pytest
import torch

import made_data
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun
from lockstep.torch.deploy.scoring_program import ContinuousActor
from offline_policies import policy_for

ALGORITHMS = {"iql": IQLConfig(policy="sampled"), "cql": CQLConfig(policy="sampled"), "td3_bc": TD3BCConfig()}
DRAWN = {
    "iql": lambda mean, log_std, noise: (mean + log_std.exp() * noise).clamp(-1, 1),
    "cql": lambda mean, log_std, noise: (mean + log_std.clamp(-20, 2).exp() * noise).tanh(),
    "td3_bc": lambda action, _, __: action,
}


@pytest.mark.parametrize("algo", list(DRAWN))
def test_actions_are_drawn_from_the_parameters_as_the_page_says(tmp_path, algo):
    data = Dataset.open(made_data.continuous(tmp_path / "data"))
    policy = policy_for(OfflineRun(data=str(data.path), algo=algo, algorithm=ALGORITHMS[algo]), data, seed=1)
    with torch.no_grad():
        for parameter in policy.network.actor.parameters():
            parameter.normal_(0.0, 2.0, generator=torch.Generator().manual_seed(1))
    value = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    presence = torch.ones_like(value, dtype=torch.bool)
    with torch.inference_mode():
        found, again = (ContinuousActor(policy)(value, presence) for _ in range(2))
        parameters = found["parameters"]
        log_std = parameters[:, 2:]
        assert algo != "cql" or (log_std > 2).any()
        noise = torch.randn(50, 2, generator=torch.Generator().manual_seed(3))
        scaled = DRAWN[algo](parameters[:, :2], log_std, noise)
        torch.testing.assert_close(policy.act(policy.state(value, presence), noise), scaled)
        at_mean = DRAWN[algo](parameters[:, :2], log_std, torch.zeros(50, 2))
        torch.testing.assert_close(found["action"], policy.unscaled(at_mean))
    assert (found["action"] == again["action"]).all(), "the file draws nothing"
