"""How hosts and ranks find each other and talk, with the standard library alone.

Finding: `join.py` and `rank_zero.py` under each launcher, `init_file.py` through a shared file,
`membership_check.py` who is missing or does not belong. Talking: `dial.py` and `links.py` connections between
hosts, `hosts.py` sums within and between hosts, `slots.py` through shared memory.
"""
