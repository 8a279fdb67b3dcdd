"""This machine: cores, memory, processes, and the launcher that started this one (`launchers.py`)."""
