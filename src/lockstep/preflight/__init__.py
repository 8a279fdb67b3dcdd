"""Before the first step.

`compare.py` do all ranks agree, `latency.py` what the network takes, `cost_model.py` what more ranks would bring.
"""
