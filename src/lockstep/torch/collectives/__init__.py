"""How ranks of torch meet (`rendezvous.py`), send (`group.py`) and compare what they hold (`agreement.py`)."""
