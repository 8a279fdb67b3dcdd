"""`python -m lockstep.workflows.parametric_dqn -p FILE [--node_index N]`."""

from lockstep.launch.child import die_with_launcher, exit_process
from lockstep.workflows.command import main

if __name__ == "__main__":
    die_with_launcher()
    exit_process(main("parametric_dqn"))
