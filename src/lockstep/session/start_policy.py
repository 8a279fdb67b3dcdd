"""Refuses a policy that a run cannot start from before the run begins; networks of other shapes are refused later."""

from dataclasses import replace
from pathlib import Path

from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.make import env_spec
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import AnyRun, OfflineRun, Run
from lockstep.session import policy_file
from lockstep.session.data_checks import check_data
from lockstep.session.logged import policy_spec
from lockstep.session.policy_file import PolicySignature, PolicySpec


def check_start_policy(path: Path, run: AnyRun) -> None:
    """Raise `ConfigError` if the run cannot start from the policy of a file, run directory or checkpoint.

    The shapes of parameters are not compared: that takes the network, and so the framework.
    """
    metadata, arrays = policy_file.read(path)
    algo = str(metadata.get("algo", "ppo"))
    policy_file.check_algo(path, algo, policy_file.FROM_LOG + run.algo if isinstance(run, OfflineRun) else run.algo)
    if isinstance(run, OfflineRun):
        theirs = policy_spec.spec_of(path, metadata)
        ours = policy_spec.PolicySpec.of_run(run, check_data(run)[0], None)
        policy_file.check_start(path, theirs.signature({}), ours.signature({}))
        return
    policy, _, observations = policy_file.parts_of(path, metadata, arrays)
    spec = env_spec(run.task, run.env)
    if run.network.module is None:  # one of the user's own may take observations of any size
        _check_spec(path, policy.spec, spec, run.task)
    policy_file.check_start(path, policy_file.signature(policy, {}, observations), _signature(run, spec))


def _signature(run: Run, spec: EnvSpec) -> PolicySignature:
    """The signature of the run's policy, without shapes."""
    ppo = run.algorithm if isinstance(run.algorithm, PPOConfig) else None
    algorithm = None if isinstance(run.algorithm, PPOConfig) else run.algorithm
    policy = PolicySpec(task=run.task, spec=spec, network=run.network, algorithm=algorithm)
    normalizes = ppo is not None and ppo.normalize_observation
    return replace(policy_file.signature(policy, {}, None), normalizes=normalizes)


def _check_spec(path: Path, theirs: EnvSpec, ours: EnvSpec, task: str) -> None:
    """Raise `ConfigError` if a policy's environments differ from those of the run so that no network is for both."""
    if _kind(theirs) != _kind(ours):
        raise ConfigError(
            f"--init-from {path}: it {_described(theirs)}, and task={task} {_described(ours)}; "
            "use a policy of this task, or start without it"
        )


def _kind(spec: EnvSpec) -> tuple[object, ...]:
    # Images of nearby sizes may have the same network.
    seen = spec.observation_size if spec.image is None else ("channels", spec.image[0])
    return seen, spec.critic_size, spec.action.kind == "continuous", spec.action.sizes


def _described(spec: EnvSpec) -> str:
    critic = "" if spec.critic_size is None else f" (its value network {spec.critic_size} numbers)"
    return f"observes {list(spec.observation_shape)}{critic} and takes {spec.action.kind} actions of " + str(
        list(spec.action.sizes)
    )
