"""`lockstep submit`: what a cluster is asked for, as text: a batch script, a manifest, a list of commands.

Every node gets one launcher (`lockstep train --nnodes ...`), which starts that node's ranks, names the first that
fails, and passes signals on: a node that is about to be taken away costs a checkpoint, not the run.
"""

import argparse


def submit_command(args: argparse.Namespace) -> int:
    """Check what is asked for as `lockstep train` would, then print it (`--dry-run`) or submit it."""
    from lockstep.submit import kubernetes, slurm, ssh
    from lockstep.submit.job import requested_job

    job = requested_job(args)
    target = {"slurm": slurm, "kubernetes": kubernetes, "ssh": ssh}[args.on]
    return target.submit(job, args)
