"""How ranks of JAX meet (`processes.py`) and sum (`transports.py`, `callback.py`, `native.py`)."""
