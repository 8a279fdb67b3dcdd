"""`lockstep bench`: the same work by Lockstep and by other libraries, in turn, as one table of ratios.

`arguments.py` has the flags, `command.py` the command. `workloads.py` lists the workloads and who does them,
`environments.py` makes a virtual environment for each library, `process.py` measures one process, `results.py` keeps
results and makes tables. `contenders/` has the scripts that are measured; each runs in the environment of its library
and prints one line of JSON.
"""
