"""Environments whose observations, rewards and flags are torch tensors, which stay on the learner's device.

`interface.py` has the protocol, `make.py` makes one by task name, `host.py` wraps one for numpy callers and `dlpack.py`
for learners in JAX, `saved_tensors.py` converts saved states, `worker.py` runs one in a process of its own.
`isaac_lab.py`, `mjlab.py` and `envpool.py` are adapters of these suites; `isaac_launch.py` starts Isaac Lab's
simulator, `spaces.py` flattens observations, `simulator_process.py` separates a simulator from its process,
`spec_cache.py` keeps what takes a start to find. `cartpole.py` is the built-in task.
"""
