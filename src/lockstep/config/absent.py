"""Words of other libraries for what Lockstep does not have, or does without a setting; `renamed.py` says why."""

_WHY = (
    ("policy policy_type", "the kind of network follows from the observation"),
    ("use_sde sde_sample_freq use_sde_at_warmup use_expln", "there is no state-dependent exploration"),
    ("optimize_memory_usage handle_timeout_termination", "the replay buffer has no such switch"),
    ("replay_buffer_class replay_buffer_kwargs rollout_buffer_class rollout_buffer_kwargs", "there is one buffer"),
    ("stats_window_size", "means are of the last updates that have 100 episodes together"),
    ("top_quantiles_to_drop_per_net top_quantiles_to_drop", "there are no critics of quantiles (TQC)"),
)
ABSENT = {name: why for names, why in _WHY for name in names.split()}
"""The reasons by name."""
