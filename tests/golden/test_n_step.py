"""The table of n-step returns, through the replay that both backends share: no framework is needed."""

import numpy as np
import pytest
import q_cases

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.replay import Replay


def filled(case, autoreset):
    """A replay of two environments that both live through the case.

    Observation t is [t] before step t and [t + 1] after it, unless an episode ended there: the next one's first is
    then [t + 1.5], with the true final observation [t + 1] apart or, with `next_step`, a step before.
    """
    spec = EnvSpec(1, ActionSpec("discrete", (3,)), autoreset, True)
    replay = Replay(spec, 2, 100, n_step=case["n"], gamma=case["gamma"], prioritized=False)
    rows = zip(*(case[name] for name in ("reward", "terminated", "truncated")), strict=True)
    replay.begin(np.zeros((2, 1), np.float32))
    for t, (reward, *ends) in enumerate(rows):
        terminated, truncated = (np.full(2, bool(end)) for end in ends)
        after, first = (np.full((2, 1), t + shift, np.float32) for shift in (1, 1.5))
        same_step = autoreset == "same_step" and any(ends)
        arrays = np.full(2, t % 3), np.full(2, reward, np.float32), terminated, truncated
        replay.add(*arrays, first if same_step else after, after if same_step else None)
        if any(ends) and not same_step:  # a step that only resets: its action and reward mean nothing
            replay.add(np.zeros(2, np.int64), np.full(2, 99, np.float32), *np.zeros((2, 2), bool), first, None)
    return replay


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@q_cases.cases("n_step")
def test_table(case, autoreset):
    replay = filled(case, autoreset)
    assert replay.size == 2 * len(case["return"])
    drawn = replay.sample(400, np.random.default_rng(0))
    seen = drawn.observation[:, 0]
    starts = seen.astype(int)
    began = np.flatnonzero(np.maximum(case["terminated"], case["truncated"])) + 1
    assert set(starts[seen > starts]) == {t for t in began if t < len(case["return"])}
    assert sorted(set(starts)) == list(range(len(case["return"])))
    np.testing.assert_array_equal(drawn.action, starts % 3)
    np.testing.assert_array_equal(drawn.return_, np.array(case["return"], np.float32)[starts])
    np.testing.assert_array_equal(drawn.discount, np.array(case["discount"], np.float32)[starts])
    lives = drawn.discount > 0  # what a terminated episode bootstraps from counts nothing
    np.testing.assert_array_equal(drawn.next_observation[lives, 0], np.array(case["bootstrap"])[starts[lives]])
