"""The algorithms in PyTorch.

`ppo.py`, `dqn.py`, `sac.py` and `td3.py` are the algorithms: maths in the losses, a round of learning in `update`, the
loop in `train`. `actor_critic.py` is the base of SAC and TD3. `networks.py`, `q_networks.py` and
`continuous_policy.py` are the policies, of `encoders.py`, `recurrent.py` and `distributions.py`; `value_losses.py` and
`returns.py` have their targets. `batch_builder.py` makes the batches of PPO, `transitions.py` those of a replay buffer.
A gradient step is `gradient.py`, `flat.py`, `adam.py` and `capture.py`. `device_rollout.py` collects from environments
on tensors (`envs/`). `comm.py` has all communication between ranks, `collectives/` its transports, `session.py` the
context of a loop. `offline/` learns from logged data, `scoring/` has its networks, `deploy/` exports policies.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
