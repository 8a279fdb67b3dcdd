"""All checks of a run that need no ranks: packages, task or data, and where its code is."""

from lockstep.envs.load import check_location
from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.run import AnyRun, OfflineRun
from lockstep.session.package_checks import check_packages
from lockstep.session.task_checks import check_task


def check_run(run: AnyRun) -> EnvSpec | None:
    """Check that a run can learn, before its first file is written.

    Returns:
        The spec of its environments; None of a run that learns from logged data.

    Raises:
        ConfigError: a package is missing, or the task, the network or the data cannot be learned with.
    """
    check_packages(run)
    if isinstance(run, OfflineRun):
        _check_offline(run)
        return None
    for name, code in (("network.module", run.network.module), ("symmetry", getattr(run.algorithm, "symmetry", None))):
        if code is not None:
            check_location(code, name)
    spec = env_spec(run.task, run.env)
    check_task(run, spec)
    return spec


def _check_offline(run: OfflineRun) -> None:
    from lockstep.session.data_checks import check_data
    from lockstep.session.offline.policy_spec import OfflinePolicySpec, check_simulator

    dataset, _ = check_data(run)
    if run.task is not None:
        check_simulator(OfflinePolicySpec.of_run(run, dataset, env_spec(run.task, run.env)), run.task)
