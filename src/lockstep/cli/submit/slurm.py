"""Write a batch script for SLURM.

The script starts one task per node, our launcher, and not one task per rank: the launcher names the rank that failed
and shows its log, can restart all ranks within the allocation, and assigns GPUs by local rank. One task per rank
(`srun lockstep train`) works, too: docs/launchers/slurm.md.
"""

import argparse
import re
import shlex
from pathlib import Path

from lockstep.cli.submit.job import Job, submit_text
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RUN_FILE

_OURS = {
    "nodes": "--nnodes",
    "ntasks-per-node": "--nproc-per-node",
    "ntasks": "--nnodes and --nproc-per-node",
    "gpus-per-node": "--gpus-per-node",
    "signal": "--grace-s",
    "job-name": "--name",
    "chdir": "--chdir",
}
"""Flags of sbatch, and the flags of ours that set them."""
_TIME_LIMIT_CODE = 128 + 10  # exit code of a launcher that wrote a checkpoint after SIGUSR1


def submit(job: Job, args: argparse.Namespace) -> int:
    """Print the script, or pass it to `sbatch`."""
    if job.run_dir and Path(job.chdir, job.run_dir, RUN_FILE).exists():
        raise ConfigError(
            f"--run-dir {job.run_dir} already holds a run; continue it by --resume {shlex.quote(job.run_dir)}, which "
            "takes the place of the task, or choose another"
        )
    where = "SLURM jobs are submitted from, or add --dry-run to see the script"
    return submit_text(script(job, args.slurm), ["sbatch"], args, where)


def script(job: Job, extra: list[str]) -> str:
    """The complete script."""
    options = _options(job, extra)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{key}" + (f"={value}" if value else "") for key, value in options.items()),
        "",
        "# Written by `lockstep submit --on slurm`. Each node runs one launcher, which starts that node's ranks.",
        *job.setup,
        "set -u",
        "trap : TERM USR1  # launchers get these, too; this shell waits for their checkpoint",
        "",
        *_rendezvous(job),
        "",
        *_new_or_resumed(job),
        "",
        *_start(job),
    ]
    if "no-requeue" not in options and job.job_restarts:
        lines += [
            f'if [ "$code" -eq {_TIME_LIMIT_CODE} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.job_restarts} ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"  # time is nearly up, a checkpoint is written: resume from it later',
            "fi",
        ]
    return "\n".join([*lines, 'exit "$code"', ""])


def _options(job: Job, extra: list[str]) -> dict[str, str]:
    options = {
        "job-name": job.name,
        "nodes": f"{job.minimum}-{job.maximum}" if job.elastic else str(job.maximum),
        "ntasks-per-node": "1",
        "cpus-per-task": "" if job.nproc == "auto" else job.nproc,
        "gpus-per-node": str(job.gpus or ""),
        "output": "%x-%j.out",
        "open-mode": "append",
        "signal": f"USR1@{job.end_s}",
    }
    options = {key: value for key, value in options.items() if value}
    if job.chdir:
        options["chdir"] = _quoted(job.chdir)
    if job.elastic:
        options["no-kill"] = ""
    given = {pair.partition("=")[0] for pair in extra}
    if "cpus-per-gpu" in given:  # sbatch takes one of the two
        options.pop("cpus-per-task", None)
    if not {"requeue", "no-requeue"} & given:
        options["requeue" if job.job_restarts else "no-requeue"] = ""
    for pair in extra:
        key, equals, value = pair.partition("=")
        if not re.fullmatch(r"[a-z][a-z-]*", key) or (equals and not value) or not value.isprintable():
            raise ConfigError(f"--slurm {pair} is not KEY or KEY=VALUE; write, for example, --slurm partition=gpu")
        if key in _OURS:
            raise ConfigError(f"--slurm {pair}: that follows from {_OURS[key]}; use that")
        if key == "time" and (limit := _seconds(value)) is not None and limit <= job.end_s:
            raise ConfigError(
                f"--slurm {pair}: SLURM tells the ranks {job.end_s} s before the end to stop, which is at their start; "
                f"ask for more time, or for less than --grace-s {job.grace_s}"
            )
        options[key] = _quoted(value)
    return options


def _seconds(limit: str) -> int | None:
    """A time limit of sbatch in seconds: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`; None for no limit."""
    if re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit) is None:
        return None
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)  # minutes come first
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds or None


def _quoted(value: str) -> str:
    """A value as sbatch reads it in a comment."""
    if not any(mark in value for mark in " \t\"'\\#"):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _rendezvous(job: Job) -> list[str]:
    port = str(job.port) if job.port is not None else "$((20000 + SLURM_JOB_ID % 10000))"
    secret = "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')"
    return [
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        f'meet=(--rdzv-endpoint "${{hosts[0]}}:{port}" --rdzv-id "$SLURM_JOB_ID")',
        *([] if "--token-file" in job.flags else [f'export LOCKSTEP_TOKEN="${{LOCKSTEP_TOKEN:-{secret}}}"']),
    ]


_AGAIN = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]'  # whether SLURM has started this job before
_ATTEMPTS = [
    "base=$run_dir  # an attempt without a checkpoint is not resumed: it would begin without the policy",
    'n=0; while [ -e "$run_dir/run.yaml" ]; do n=$((n + 1)); run_dir=$base.$n; done',
    'for found in "$base" "$base".[0-9]*; do',
    '  if [ -e "$found/checkpoints/LATEST" ]; then run_dir=$found; fi',
    "done",
]


def _new_or_resumed(job: Job) -> list[str]:
    """The arguments of a new run, or of a resumed one if the job was requeued."""
    if job.resume:
        return [f"what=({shlex.join(['--resume', job.resume, *job.changes])})"]
    attempts = _ATTEMPTS if "--init-from" in job.train else []
    run_dir, again = f"runs/{job.name}-$SLURM_JOB_ID", ""
    if job.run_dir:  # it may hold the run of another job, beside which the launcher refuses to start
        run_dir, again = shlex.quote(job.run_dir), f"{_AGAIN} && "
        attempts = [f"if {_AGAIN}; then", *(f"  {line}" for line in attempts), "fi"] if attempts else []
    return [
        f"run_dir={run_dir}",
        *attempts,
        f'if {again}[ -e "$run_dir/run.yaml" ]; then  # this job was here before',
        '  what=(--resume "$run_dir")',
        "else",
        f'  what=({shlex.join(job.train)} --run-dir "$run_dir")',
        "fi",
    ]


def _start(job: Job) -> list[str]:
    launcher = f'{shlex.join(job.lockstep)} train "${{what[@]}}" {shlex.join(job.node_flags)} "${{meet[@]}}"'
    srun = ["srun", *(["--no-kill"] if job.elastic else []), "--export=ALL", "--kill-on-bad-exit=0", "--wait=0"]
    task = (
        '"${launcher[@]}"'  # the rendezvous assigns node ranks
        if job.elastic
        else """bash -c 'exec "$@" --node-rank "$SLURM_NODEID"' launcher "${launcher[@]}\""""
    )
    return [
        f"launcher=({launcher})",
        "# A launcher that ends early must not take the others with it: they may still write a checkpoint.",
        f'{" ".join(srun)} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}} \\',
        f"  {task}",
        "code=$?",
    ]
