"""How hosts and ranks find each other and exchange messages, without a framework.

The store: `store.py` its protocol, `store_server.py` server and client, `framing.py` the messages between them.
Rendezvous: `rendezvous.py` of a world's ranks, `rank_zero.py` and `rank_store.py` where rank 0's store is,
`rendezvous_address.py` under each launcher, `init_file.py` through a shared file, `membership_check.py` whether all
ranks are there. Messages: `dial.py` and `links.py` connections between hosts, `hosts.py` sums within and between hosts,
`slots.py` through shared memory.
"""
