"""A rank that does not do what the others do: `python unfaithful.py skip|swap ARGUMENTS OF lockstep.train`."""

import os
import sys

from lockstep.launch.child import die_with_launcher

UPDATE = 10  # the first update in which rank 1 goes its own way


def skip():
    """One `average_gradients_` takes the mean over this rank alone."""
    from lockstep.torch.comm import Comm

    original, calls = Comm.average_gradients_, []

    def average_gradients_(comm, parameters, *args, **kwargs):
        calls.append(1)
        if len(calls) != 4 * UPDATE + 2:  # 2 epochs of 2 minibatches
            return original(comm, parameters, *args, **kwargs)
        total = parameters.rows.sum(0)
        sums = total[parameters.num_parameters :].clone()
        parameters.gradient.copy_(total[: parameters.num_parameters] / sums[0])
        return sums

    Comm.average_gradients_ = average_gradients_


def swap():
    """The proof of sync comes before the log line instead of after it."""
    from lockstep.torch.session import Session

    log, checkpoint_if_due, waiting = Session.log, Session.checkpoint_if_due, []

    def log_later(session, metrics):
        if session.progress.updates == UPDATE:
            waiting.append(metrics)
        else:
            log(session, metrics)

    def checkpoint_first(session, *args):
        checkpoint_if_due(session, *args)
        if waiting:
            log(session, waiting.pop())

    Session.log, Session.checkpoint_if_due = log_later, checkpoint_first


if __name__ == "__main__":
    die_with_launcher()
    if os.environ["RANK"] == "1":
        {"skip": skip, "swap": swap}[sys.argv[1]]()
    from lockstep.train import main

    code = main(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
