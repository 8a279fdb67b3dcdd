"""How ranks of torch meet (`rendezvous.py`), send (`group.py`) and compare tensors (`checksum.py`)."""
