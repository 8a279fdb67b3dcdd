"""What a user is told of a run's settings when it starts."""

import math

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.replay import ReplayConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.exploration import epsilon
from lockstep.record.text import counted
from lockstep.run import AnyRun, Run
from lockstep.session.task_defaults import default_settings, defaults_note
from lockstep.session.unused_settings import unused_settings


def start_notes(run: AnyRun, spec: EnvSpec | None, *, task_alone: bool, resumed: bool = False) -> list[str]:
    """The kind of task that default settings were chosen for, if any, and settings that defeat themselves.

    Args:
        run: the config.
        spec: of its environments, as `check_run` returns it.
        task_alone: whether the user named a task alone, which then has the default settings of its kind.
        resumed: whether the run continues, so that its start is over.
    """
    contradictions = _entropy_notes(run, spec)
    if not resumed and isinstance(run, Run):
        contradictions += [*_replay_notes(run), *_short_run_notes(run)]
    if not (task_alone and isinstance(run, Run) and spec is not None):
        return [*unused_settings(run, spec), *contradictions]
    note = defaults_note(run, spec)
    chosen = [] if note is None else [f"{note}; run.yaml has them all"]
    return [*chosen, *unused_settings(run, spec, default_settings(run, spec)), *contradictions]


def _entropy_notes(run: AnyRun, spec: EnvSpec | None) -> list[str]:
    """That a target entropy is above that of uniform actions: the temperature grows without end."""
    config = run.algorithm
    if not isinstance(config, SACConfig) or config.target_entropy is None or spec is None:
        return []
    most = spec.action.width * math.log(2.0)  # in nats, of actions uniform in [-1, 1]
    if config.target_entropy < most:
        return []
    return [
        f"target_entropy={config.target_entropy:g} cannot be reached: the entropy of an action of "
        f"{counted(spec.action.width, 'number')} in [-1, 1] is at most {most:.3g} nats, so that the temperature grows "
        "until nothing else counts"
    ]


def _short_run_notes(run: Run) -> list[str]:
    """That a run shorter than a rollout is as long as one."""
    rollout = run.num_envs * run.algorithm.num_steps
    if run.total_steps >= rollout:
        return []
    return [
        f"total_steps={run.total_steps} is less than one rollout, which is collected whole: {rollout} steps "
        f"(num_envs={run.num_envs} x num_steps={run.algorithm.num_steps})"
    ]


def _replay_notes(run: Run) -> list[str]:
    """One sentence for each setting that leaves little to learn, or learns little from what was collected."""
    config, total = run.algorithm, run.total_steps
    if not isinstance(config, ReplayConfig):
        return []
    notes: list[str] = []
    starts, rollout = config.learning_starts, run.num_envs * config.num_steps
    if starts > run.last_step:
        notes.append(f"learning_starts={starts} is beyond total_steps={total}: nothing will be learned")
    elif starts > total / 2:
        notes.append(
            f"learning_starts={starts} of total_steps={total}: the agent learns only from there on; set a smaller "
            "learning_starts, or more total_steps"
        )
    if config.capacity < rollout:
        notes.append(
            f"capacity={config.capacity} is less than one rollout, {rollout} steps (num_envs={run.num_envs} x "
            f"num_steps={config.num_steps}): transitions are overwritten before they are learned from"
        )
    elif config.capacity < min(starts, total):
        notes.append(
            f"capacity={config.capacity} is less than learning_starts={starts}: the first transitions are overwritten "
            "before they are learned from"
        )
    if isinstance(config, DQNConfig) and config.epsilon_schedule == "linear" and not config.noisy:
        first, last = config.epsilon_range
        if first != last and config.epsilon_steps > total:
            notes.append(
                f"epsilon_steps={config.epsilon_steps} is beyond total_steps={total}: "
                f"{100 * epsilon(config, total):.3g} % of the actions are random at the end"
            )
    return notes
