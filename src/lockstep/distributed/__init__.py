"""Framework-free parts of distributed training.

`comm.py` is the protocol of both backends' collectives; `signature.py` what ranks compare before they exchange;
`tree.py` the fixed order of every sum; `shared_memory.py` the memory of a host's ranks; `network/` rendezvous and
messages between hosts; `watch.py` stall detection; `agreement.py` and `fingerprint.py` check that ranks have the same
bits and collected different data.
"""
