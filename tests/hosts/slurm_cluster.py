"""A real SLURM on the hosts of a test: Debian's daemons, with files of their own."""

import shutil
import time
from collections.abc import Callable

import pytest
from network import Command, Host, Network, wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# `cred_expire` is also how long a job that queues again has to wait; two minutes, usually.
_CONFIG = """\
ClusterName=lockstep
SlurmctldHost=alpha
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir=/mnt
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=5
NodeName={names} CPUs=4 Sockets=1 CoresPerSocket=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# slurmd wants a freezer of control groups, whatever tracks its processes, and a host's /sys has none. Its sockets want
# short paths.
_SLURMD = """\
mount -t tmpfs tmpfs /mnt &&
mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer &&
mount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer || exit 77
exec slurmd -D
"""


def missing() -> str:
    """Why there can be no SLURM here; empty if there can."""
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"needs {', '.join(lacking)} (packages slurmctld, slurmd, slurm-client, munge)" if lacking else ""


class Slurm:
    """A controller on the first host, and a node on each."""

    def __init__(self, network: Network) -> None:
        self.network, self.main = network, network.hosts[0]
        folder = network.folder / "slurm"
        (folder / "state").mkdir(parents=True)
        names = ",".join(host.name for host in network.hosts)
        (folder / "slurm.conf").write_text(_CONFIG.format(folder=folder, names=names))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "munge.key").write_bytes(b"k" * 64)
        (folder / "munge.key").chmod(0o600)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._munge()
        self.daemons = [self._start(self.main, ["slurmctld", "-D"])]
        for host in network.hosts:
            self.daemons.append(self._start(host, ["sh", "-c", _SLURMD]))
        self._wait(self.idle)

    def run(self, *words: str) -> str:
        """A command on the first host, which has to succeed."""
        return self.main.run(list(words), self.environment)

    def start(self, *words: str) -> Command:
        """A command on the first host."""
        return self.main.start(list(words), self.environment)

    def job(self, number: int) -> str:
        """What SLURM says of a job's state."""
        return self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", str(number)).strip()

    def idle(self) -> bool:
        """Whether nothing runs on any node, or is being cleared away."""
        return self.run("sinfo", "-h", "-o", "%T %D") == f"idle {len(self.network.hosts)}\n"

    def _munge(self) -> None:
        """One daemon serves all hosts: its socket is a file."""
        folder = self.network.folder / "slurm"
        files = {"socket": "sock", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={folder}/munge.{file}" for flag, file in files.items()]
        daemon = self.main.start(["munged", "--foreground", "--force", *flags])
        wait_for((folder / "munge.sock").exists, lambda: f"munged did not start:\n{daemon.said}")

    def _start(self, host: Host, words: list[str]) -> Command:
        return host.start(words, self.environment)

    def _wait(self, condition: Callable[[], bool]) -> None:
        def ready() -> bool:
            for daemon in self.daemons:
                if not daemon.running:
                    if daemon.wait() == 77:
                        pytest.skip("slurmd needs control groups of version 1, which cannot be mounted here")
                    pytest.fail(f"{daemon} ended:\n{daemon.said[-2000:]}")
            time.sleep(0.2)
            return condition()

        wait_for(ready, lambda: "\n".join(daemon.said[-2000:] for daemon in self.daemons))
