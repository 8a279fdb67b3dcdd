"""`lockstep submit`: what a cluster is asked for, as text: a batch script, a manifest, a list of commands.

Every node gets one launcher (`lockstep train --nnodes ...`), which starts that node's ranks, names the first that
fails, and passes signals on: a node that is about to be taken away costs a checkpoint, not the run.
"""

import argparse
import sys


def submit_command(args: argparse.Namespace) -> int:
    """Check what is asked for as `lockstep train` would, then print it (`--dry-run`) or submit it."""
    from lockstep.cli.submit import kubernetes, slurm, ssh
    from lockstep.cli.submit.job import requested_job

    if args.dry_run:
        _stand_in(args)
    job = requested_job(args)
    target = {"slurm": slurm, "kubernetes": kubernetes, "ssh": ssh}[args.on]
    return target.submit(job, args)


def _stand_in(args: argparse.Namespace) -> None:
    """A dry run shows its shape before there is an image or a host: names stand in for what only the user knows."""
    missing: dict[str, str] = {}
    if args.on == "kubernetes":
        missing = {"image": "registry.example/lockstep:tag", "claim": "your-claim"}
    elif args.on == "ssh" and not args.hostfile:
        most = (args.nnodes or "2").rpartition(":")[2]
        missing = {"hosts": ",".join(f"host-{i}" for i in range(int(most) if most.isdecimal() else 0))}
    for name, value in missing.items():
        if getattr(args, name) is None and value:
            setattr(args, name, value)
            print(f"lockstep: note: no --{name} given; {value} stands for yours", file=sys.stderr)
