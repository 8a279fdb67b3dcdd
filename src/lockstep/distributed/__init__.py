"""Framework-free parts of being many ranks.

`comm.py` is the protocol that both backends' collectives follow; `tree.py` the fixed order in which every sum is
taken; `shared_memory.py` what the ranks of a host share; `network/` how hosts find each other and talk; `watch.py`
names the rank that does not come back; `agreement.py` and `fingerprint.py` prove that ranks hold the same bits and
collected different data.
"""
