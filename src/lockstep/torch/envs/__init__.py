"""Environments whose observations, rewards and flags are torch tensors, which stay on the learner's device.

`interface.py` has the protocol, `make.py` makes one by task name, `host.py` wraps one for numpy callers,
`saved_tensors.py` converts saved states. `isaac_launch.py` starts Isaac Lab's simulator.
"""
