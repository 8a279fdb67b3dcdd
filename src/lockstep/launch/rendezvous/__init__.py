"""The rendezvous of the nodes, before any rank starts: all nodes join the main node, or all fail with the same error.

Contradictions between nodes are found here and reported at once, instead of later by the timeout of a library.
`join.py` is where to begin: the main node runs `server.py`, the others `client.py`.
"""

from lockstep.launch.rendezvous.join import NodeRendezvous, rendezvous
from lockstep.launch.rendezvous.waiting import Cancelled

__all__ = ["Cancelled", "NodeRendezvous", "rendezvous"]
