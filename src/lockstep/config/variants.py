"""Names of algorithms in other libraries that are one of ours, with settings of their own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """Names of an algorithm that is one of ours, with some settings of its own."""

    names: str
    """The names, separated by spaces."""
    algo: str
    settings: str = ""
    """Those that make it of the defaults, separated by spaces."""


VARIANTS = (
    Variant("ppo2 appo ippo mappo ppo_continuous", "ppo"),
    Variant("recurrent_ppo recurrentppo ppo_recurrent ppo_lstm ppo_rnn", "ppo", "network.recurrent=lstm"),
    Variant("ppo_gru", "ppo", "network.recurrent=gru"),
    Variant("ddqn double_dqn", "dqn", "double=true"),
    Variant("dueling_dqn", "dqn", "dueling=true"),
    Variant("c51 categorical_dqn", "dqn", "value_distribution=categorical"),
    Variant("qrdqn qr_dqn", "dqn", "value_distribution=quantile"),
    Variant(
        "rainbow rainbow_dqn",
        "dqn",
        "double=true dueling=true noisy=true prioritized=true n_step=3 value_distribution=categorical",
    ),
    Variant("ddpg", "td3", "num_critics=1 policy_delay=1 target_noise=0"),
    Variant("redq", "sac", "updates_per_step=20 policy_delay=20 num_critics=10 target_critics=2"),
    Variant("droq", "sac", "updates_per_step=20 policy_delay=20 target_critics=2 layer_norm=true dropout=0.01"),
    Variant("behaviour_cloning behavior_cloning behavioral_cloning imitation", "bc"),
    Variant("td3bc td3_plus_bc", "td3_bc"),
    Variant("bcq discrete_bcq", "dqn", "bcq_threshold=0.3"),
    Variant("discrete_cql", "cql"),
)
"""Names of algorithms elsewhere. The first whose `algo` a run may have applies."""
