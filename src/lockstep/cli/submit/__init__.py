"""`lockstep submit`: write or submit the job that trains on a cluster.

`job.py` checks the arguments, `slurm.py` writes a batch script, `kubernetes.py` a manifest, `ssh.py` commands, `ray.py`
a Ray job. Every node gets one launcher (`lockstep train --nnodes ...`; not under Ray, which has actors), which starts
that node's ranks, names the first that fails, and forwards signals, so that a preempted node still writes a checkpoint.
"""

import argparse
import sys

from lockstep.errors import ConfigError

_MOST_PLACEHOLDERS = 1000


def submit_command(args: argparse.Namespace) -> int:
    """Check the job as `lockstep train` would, then submit it, or print it with `--dry-run`."""
    from lockstep.cli.submit import kubernetes, ray, slurm, ssh
    from lockstep.cli.submit.job import requested_job

    if args.on is None:
        raise ConfigError("--on is missing; name the kind of cluster: --on slurm, kubernetes, ssh or ray")
    if args.dry_run:
        _fill_placeholders(args)
    job = requested_job(args)
    target = {"slurm": slurm, "kubernetes": kubernetes, "ssh": ssh, "ray": ray}[args.on]
    return target.submit(job, args)


def _fill_placeholders(args: argparse.Namespace) -> None:
    """Set placeholders for missing images, claims and hosts in a dry run."""
    missing: dict[str, str] = {}
    if args.on == "kubernetes":
        missing = {"image": "registry.example/lockstep:tag", "claim": "your-claim"}
    elif args.on == "ray":
        missing = {"address": "http://HEAD:8265"}
    elif args.on == "ssh" and not args.hostfile and args.hosts is None:
        from lockstep.launch.node_flags import node_counts

        _, most = node_counts(args.nnodes or "2")
        if most > _MOST_PLACEHOLDERS:
            raise ConfigError(
                f"--nnodes {args.nnodes}: a dry run makes up the names of at most {_MOST_PLACEHOLDERS} hosts; "
                "name yours with --hosts or --hostfile"
            )
        missing = {"hosts": ",".join(f"host-{i}" for i in range(most))}
    for name, value in missing.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
            print(f"lockstep: note: no --{name} given; {value} stands for yours", file=sys.stderr)
