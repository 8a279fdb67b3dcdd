"""C51 warns once where the returns of the task are beyond its support."""

import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.run import Run, override
from lockstep.session.support_watch import watch_support


class Journal:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def warnings(targets: list[float], **settings) -> list[str]:
    """Those of log lines with these mean targets."""
    journal = Journal()
    lines = iter([{"value/target": target} for target in targets])
    read = watch_support(journal, DQNConfig(**settings), lambda: next(lines))
    assert [read()["value/target"] for _ in targets] == targets
    return journal.warnings


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (9.9, "value/target=9.9 is at the end of the support: if the task has discounted returns larger than v_max=10"),
        (-10.0, "value/target=-10 is at the end of the support: if the task has discounted returns smaller than v_min"),
    ],
)
def test_target_at_an_end_is_told_once(target: float, told: str) -> None:
    (text,) = warnings([0.0, target, target], value_distribution="categorical")
    assert text.startswith(told)


def test_target_within_the_support_and_other_losses_are_not_told() -> None:
    assert warnings([9.5, -9.5, 0.0], value_distribution="categorical") == []
    assert warnings([500.0], value_distribution="none") == []
    assert warnings([500.0], value_distribution="quantile") == []


def test_line_before_the_first_gradient_step_has_no_target() -> None:
    journal = Journal()
    read = watch_support(journal, DQNConfig(value_distribution="categorical"), lambda: {"replay/size": 1.0})
    assert read() == {"replay/size": 1.0}
    assert journal.warnings == []


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_run_tells(framework: str, tmp_path, capfd) -> None:
    pytest.importorskip(framework)
    from lockstep import train

    run = override(
        Run(task="CartPole-v1", algo="dqn", ml_framework=framework, num_envs=2, total_steps=200, log_every=50),
        {"value_distribution": "categorical", "v_min": -0.1, "v_max": 0.1, "learning_starts": 32, "batch_size": 8},
    )
    train(run, run_dir=tmp_path / "run")
    assert capfd.readouterr().out.count("returns larger than v_max=0.1") == 1
