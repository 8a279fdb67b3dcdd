"""The real SLURM over two hosts: what `lockstep submit` hands in runs, and goes on after a requeue, to the bit."""

import time

import pytest
import slurm_cluster
from network import wait_for
from slurm_cluster import Slurm
from small_runs import Paced, ended_well, only_run, same_bits, small, steps

from lockstep.launch.signals import signal_name

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing()),
]
SUBMIT = ("lockstep", "submit", "--on", "slurm", "--nnodes", "2", "--nproc-per-node", "2", "--name", "job")
SUBMIT += ("--run-dir", "runs/job")


def logged(slurm, number=1):
    """What SLURM says of a job, and what the job has said."""
    output = slurm.network.shared / f"job-{number}.out"
    said = output.read_text() if output.exists() else "(no output)"
    return f"{slurm.run('scontrol', 'show', 'job', str(number))}\n{said}"


def completed(slurm, number=1):
    def done() -> bool:
        time.sleep(0.5)
        state = slurm.job(number)
        assert state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"), logged(slurm, number)
        return state == "COMPLETED"

    wait_for(done, lambda: logged(slurm, number))


def test_a_submitted_job_trains_on_both_nodes(network, one_host):
    slurm = Slurm(network(2))
    tested = slurm.start(
        "sh", "-c", f'{" ".join(SUBMIT)} "$@" --dry-run | sbatch --test-only', "sh", "cartpole", *small()
    )
    assert tested.wait() == 0, tested.said
    said = slurm.run(*SUBMIT, "cartpole", *small())
    number = int(said.split()[-1])
    completed(slurm, number)
    same_bits(one_host("cartpole"), slurm.network.shared / "runs/job", ranks=4, hosts=2)


def test_a_job_whose_time_is_up_goes_on_later(network):
    slurm = Slurm(network(2))
    paced = Paced(slurm.network.shared, updates=40)
    slurm.run(*SUBMIT, *paced.arguments)
    run_dir = slurm.network.shared / "runs/job"
    wait_for(lambda: steps(run_dir) > 0, lambda: logged(slurm))
    slurm.run("scancel", "--signal=USR1", "1")  # as SLURM itself does before the time limit
    wait_for(lambda: slurm.job(1) == "PENDING", lambda: logged(slurm))
    assert "interrupted by " + signal_name(10) in logged(slurm)
    before = steps(run_dir)
    paced.let_go()
    completed(slurm)
    assert 0 < before < steps(run_dir)
    same_bits(paced.alone(), run_dir, ranks=4, hosts=2)


def test_one_task_per_rank_needs_no_script(network, one_host):
    slurm = Slurm(network(2))
    ended_well(slurm.start("srun", "-N2", "--ntasks-per-node=2", "lockstep", "train", "cartpole", *small()))
    same_bits(one_host("cartpole"), only_run(slurm.network), ranks=4, hosts=2)
