"""Agent configurations of rl_games, skrl, rsl_rl and Stable-Baselines3 as settings of our PPO.

`settings.py` chooses the library, `reader.py` accounts for every key of a configuration; one file per library maps
its keys.
"""
