"""Settings and metric names of each algorithm, for every backend.

Begin with the file of an algorithm, such as `ppo.py`. `replay.py` has the settings that DQN, SAC and TD3 share,
`task_defaults.py` the defaults by kind of task, and `checks.py` the checks that many algorithms have.
"""
