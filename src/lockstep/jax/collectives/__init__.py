"""JAX's process group (`processes.py`), device mesh (`mesh.py`) and compiled collectives (`transports.py`)."""
