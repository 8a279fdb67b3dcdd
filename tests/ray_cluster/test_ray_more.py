"""Functions, sweeps, jobs and Ray Tune on a real cluster."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from drivers import LOCKSTEP, WITHIN_S, Driver, fingerprint, summary, wait_for
from small_runs import BATCH, Paced, small, steps

import made_data
from lockstep.data.dataset import Dataset

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]
EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = small(total_steps=8 * BATCH)


def script(folder: Path, text: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "script.py", *words],
        cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


def test_function_runs_on_all_ranks(cluster, tmp_path):
    done = script(
        tmp_path,
        """
        import json, os
        from lockstep.engines.ray import launch

        def main():
            offset = 10

            def work(rank, factor):  # a closure, which only its value can bring to the ranks
                from lockstep import Comm, World
                import torch
                with Comm(World.from_environment(), device="cpu") as comm:
                    total = comm.sum(torch.ones(1)).item()
                return rank * factor + offset, total, os.environ["OMP_NUM_THREADS"], os.nice(0)

            print(json.dumps(launch(work, (3,), ranks=2, strategy="SPREAD", cpus_per_rank=2)))

        main()
        """,
        RAY_ADDRESS=cluster.address,
    )
    assert done.returncode == 0, done.stderr
    nice = os.nice(0) if os.geteuid() == 0 else 15  # Ray's own, which only root can lower
    assert json.loads(done.stdout.splitlines()[-1]) == [[10, 2.0, "2", nice], [13, 2.0, "2", nice]]


def test_a_rank_that_has_returned_may_wait_for_others(cluster, tmp_path):
    done = script(
        tmp_path,
        """
        from lockstep.engines.ray import launch
        from lockstep.launch.supervise import Bounds

        def slow_rank_0(rank):
            import time
            time.sleep(0 if rank else BOUND + 3)
            return rank

        BOUND = Bounds().early_s
        print(launch(slow_rank_0, ranks=2))
        """,
        RAY_ADDRESS=cluster.address,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1]"


def test_exception_of_a_rank_is_raised_with_its_traceback(cluster, tmp_path):
    done = script(
        tmp_path,
        """
        from lockstep import RunError
        from lockstep.engines.ray import launch

        def broken(rank):
            if rank == 1:
                raise ZeroDivisionError("no divisor")
            import time
            time.sleep(100)

        try:
            launch(broken, ranks=2)
        except RunError as error:
            print(error, error.__cause__)
        """,
        RAY_ADDRESS=cluster.address,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1: ZeroDivisionError: no divisor" in done.stdout
    assert "in broken" in done.stdout


def test_sweep_is_packed_on_the_cluster_and_continued(cluster, tmp_path):
    settings = " ".join(SHORT)
    (tmp_path / "sweep.yaml").write_text(
        f"train: CartPole-v1 --ranks 2 {settings}\nseeds: 0:2\nsettings:\n  learning_rate: [1e-3, 3e-4]\n"
    )
    words = ["sweep", "sweep.yaml", "--on", "ray", "--address", cluster.address, "--run-dir", "all"]
    output = Driver(tmp_path, *words).succeed()
    assert "2 at a time on CPU 2 each" in output
    runs = sorted((tmp_path / "all").glob("*/seed_*/summary.json"))
    assert len(runs) == 4
    assert {summary(path.parent)["status"] for path in runs} == {"finished"}
    again = Driver(tmp_path, *words).succeed()
    assert again.count("starts on Ray (CPU 2)") == 4  # all of them by the first command


def test_job_is_submitted_and_trains(new_cluster, tmp_path):
    cluster = new_cluster(2, dashboard=True)
    address, run_dir = f"http://{cluster.head_node.webui_url}", tmp_path / "job"
    words = ["submit", "CartPole-v1", "--on", "ray", "--address", address, "--nnodes", "1", "--nproc-per-node", "2"]
    words += ["--name", "small-job", "--chdir", str(tmp_path), "--run-dir", str(run_dir), *SHORT]

    def submitted() -> bool:
        done = subprocess.run([LOCKSTEP, *words], capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert done.returncode == 0 or "No available agent" in done.stderr, done.stderr  # it starts after the dashboard
        return "submitted small-job" in done.stdout

    wait_for(submitted, "the dashboard accepts the job")
    wait_for(lambda: (run_dir / "summary.json").exists(), "the job trains")
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)
    wait_for(lambda: client.get_job_status("small-job").is_terminal(), "the job ends")
    assert client.get_job_status("small-job") == "SUCCEEDED", client.get_job_logs("small-job")
    assert fingerprint(run_dir)
    rank = (run_dir / "logs" / "rank_0.log").read_text()
    assert "on cpu" in rank


def test_rayjob_of_kubernetes_ends_with_a_checkpoint_and_its_next_cluster_resumes(new_cluster, tmp_path):
    """The operator posts entrypoint and runtime environment to a head without CPUs."""
    from ray.job_submission import JobSubmissionClient

    paced = Paced(tmp_path, updates=40)
    words = ["submit", *paced.arguments, "--on", "kubernetes", "--kind", "rayjob", "--nproc-per-node", "2"]
    words += ["--name", "cp", "--image", "none", "--claim", "none", "--mount", str(tmp_path), "--lockstep", LOCKSTEP]
    done = subprocess.run(
        [LOCKSTEP, *words, "--dry-run"], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load(done.stdout)["spec"]
    cluster = new_cluster(0, 2, dashboard=True)
    client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")

    def post(name: str) -> None:
        environment = yaml.safe_load(spec["runtimeEnvYAML"])
        client.submit_job(entrypoint=spec["entrypoint"], submission_id=name, runtime_env=environment)

    def accepted() -> bool:
        with contextlib.suppress(RuntimeError):  # its agent starts after the dashboard
            post("first")
            return True
        return False

    run_dir = tmp_path / "cp"
    wait_for(accepted, "the dashboard accepts the job")
    wait_for(lambda: steps(run_dir) > 0, "the job trains")
    client.stop_job("first")
    wait_for(lambda: client.get_job_status("first").is_terminal(), "the job stops")
    assert summary(run_dir)["status"] == "interrupted"
    paced.let_go()
    post("second")
    wait_for(lambda: client.get_job_status("second").is_terminal(), "the second job ends")
    assert client.get_job_status("second") == "SUCCEEDED", client.get_job_logs("second")
    assert summary(run_dir)["resumed_from"] is not None
    assert fingerprint(run_dir) == fingerprint(paced.alone())


def test_example_of_ray_tune_reports_our_metrics(cluster, tmp_path):
    words = ["--ranks", "2", "--trials", "2", "--total-steps", "4096", "--folder", str(tmp_path / "all")]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "ray_tune.py"), *words],
        cwd=tmp_path, env=os.environ | {"RAY_ADDRESS": cluster.address}, capture_output=True, text=True,
        timeout=2 * WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "best return" in done.stdout
    runs = [path.parent for path in (tmp_path / "all").glob("trial_*/metrics.jsonl")]
    assert len(runs) == 2, done.stdout
    assert any((path / "summary.json").exists() for path in runs)  # the other may have been ended early


def test_jax_ranks_have_the_parameters_of_our_own_launcher(cluster, tmp_path):
    pytest.importorskip("jax")
    words = ["train", "CartPole-v1", "--ml-framework", "jax", "--ranks", "2", *SHORT]
    Driver(tmp_path, *words, "--run-dir", "local").succeed()
    Driver(
        tmp_path, *words, "--run-dir", "run", "--on", "ray", "--address", cluster.address, "--strategy", "SPREAD"
    ).succeed()
    assert summary(tmp_path / "run")["ml_framework"] == "jax"
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "local")


def test_a_workflow_file_is_learned_from_on_the_cluster(cluster, tmp_path):
    """With the flags of Ray, as prepared data are: `--ranks MIN:MAX` is no number for the launcher of one node."""
    made_data.discrete(tmp_path / "data")
    file = {
        "training_data_path": "data",
        "actions": list(Dataset.open(tmp_path / "data").info.actions),
        "epochs": 1,
        "training": {"layers": [-1, 8, -1], "activations": ["relu", "linear"], "minibatch_size": 32},
    }
    (tmp_path / "dqn.json").write_text(json.dumps(file))
    words = ["offline", "train", "dqn.json", "--on", "ray", "--address", cluster.address, "--run-dir"]
    Driver(tmp_path, *words, "run", "--ranks", "1:2", "--set", "num_shards=2").succeed()
    assert (summary(tmp_path / "run")["status"], summary(tmp_path / "run")["env_steps"]) == ("finished", 200)
    (tmp_path / "dqn.json").write_text(json.dumps(file | {"num_nodes": 2, "init_method": "tcp://127.0.0.1:5591"}))
    driver = Driver(tmp_path, *words, "other")
    assert driver.wait() == 2
    assert "num_nodes=2 of dqn.json is for launchers that run on each node; with --on ray give" in driver.output
