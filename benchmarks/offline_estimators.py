"""Counterfactual estimates against the truth, on a tabular MDP whose values are known in closed form.

    python benchmarks/offline_estimators.py                      # 100 logs each of 100, 400 and 1600 trajectories
    python benchmarks/offline_estimators.py --trials 300 --model wrong

For every estimator: in how many of the trials the truth lies in its own 95% interval, and its root mean squared error.
The models of rewards and values are tables fitted to the same log (`fitted`), or such tables of states that look alike,
and too large by a constant (`wrong`), where estimates that trust a model have no reason to be right.

Shapes: S states, A actions, C columns (the reward and one metric).
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lockstep.estimators.diagnose import LogStatistics
from lockstep.estimators.estimates import clipping_thresholds, estimates, group_sizes
from lockstep.estimators.importance import DECISION
from lockstep.estimators.trajectories import Decisions, Predicted, discounts, summed

S, A, GAMMA, ENDS = 5, 3, 0.95, 0.3
COLUMNS = ("reward", "cost")


@dataclass(frozen=True)
class World:
    """A small MDP, what its log is made with, and what is to be estimated."""

    start: np.ndarray  # [S]
    moves: np.ndarray  # [S, A, S], what is missing to 1 ends the trajectory
    rewards: np.ndarray  # [S, A, C], means; the reward adds noise
    logged: np.ndarray  # [S, A], propensities
    policy: np.ndarray  # [S, A]

    def values(self, policy: np.ndarray) -> np.ndarray:
        """V(s) of a policy [S, C]: (I - gamma P) V = r."""
        moves = np.einsum("sa,sat->st", policy, self.moves)
        return np.linalg.solve(np.eye(S) - GAMMA * moves, np.einsum("sa,sac->sc", policy, self.rewards))

    @property
    def trajectory(self) -> np.ndarray:
        """What a trajectory of the policy is worth [C]."""
        return self.start @ self.values(self.policy)

    @property
    def decision(self) -> np.ndarray:
        """The mean reward of the policy's decisions in the states of the log's rows [C]."""
        moves = np.einsum("sa,sat->st", self.logged, self.moves)
        visits = np.linalg.solve(np.eye(S) - moves.T, self.start)
        return visits @ np.einsum("sa,sac->sc", self.policy, self.rewards) / visits.sum()


def world(seed: int = 1, apart: float = 0.5) -> World:
    """A random one; `apart` is how different the policies are."""
    random = np.random.default_rng(seed)
    moves = random.dirichlet(np.full(S, 0.5), (S, A)) * (1 - ENDS)
    rewards = np.stack([random.normal(1.0, 1.0, (S, A)), -random.exponential(1.0, (S, A))], 2)
    logits = random.normal(0.0, 0.5, (S, A))
    logits = np.stack([logits, logits + apart * random.normal(0.0, 1.0, (S, A))])
    logged, policy = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    return World(random.dirichlet(np.ones(S)), moves, rewards, logged, policy)


@dataclass(frozen=True)
class Log:
    offsets: np.ndarray
    state: np.ndarray
    action: np.ndarray
    following: np.ndarray  # S: the end
    reward: np.ndarray


def log(mdp: World, trajectories: int, random: np.random.Generator) -> Log:
    """Trajectories of the logged policy."""

    def draw(probabilities: np.ndarray) -> np.ndarray:
        return (random.random((len(probabilities), 1)) > np.cumsum(probabilities, 1)).sum(1)

    owner, step, rows = np.arange(trajectories), 0, []
    state = draw(np.repeat(mdp.start[None, :-1], trajectories, 0))
    while len(owner):
        action = draw(mdp.logged[state, :-1])
        following = draw(mdp.moves[state, action])
        reward = mdp.rewards[state, action] + random.normal(0, 0.5, (len(owner), 1)) * [[1.0, 0.0]]
        rows.append((owner, np.full(len(owner), step), state, action, following, reward))
        owner, state, step = owner[following < S], following[following < S], step + 1
    owner, steps, state, action, following, reward = (np.concatenate(x) for x in zip(*rows, strict=True))
    order = np.lexsort((steps, owner))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner))])
    return Log(offsets, state[order], action[order], following[order], reward[order])


def fitted(mdp: World, rows: Log, alike: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R and Q of the policy, [S, A, C] each, as tables of counts; `alike` [S] names the state that stands for each."""
    kind = alike[rows.state] * A + rows.action
    counts = np.bincount(kind, minlength=S * A)
    total = np.stack([np.bincount(kind, r, S * A) for r in rows.reward.T], 1)
    reward = (total / np.maximum(counts, 1)[:, None]).reshape(S, A, -1)
    moves = np.zeros((S * A, S + 1))
    np.add.at(moves, (kind, np.append(alike, S)[rows.following]), 1.0)
    moves = (moves / np.maximum(counts, 1)[:, None])[:, :S].reshape(S, A, S)
    policy = mdp.policy[alike]
    mean = np.linalg.solve(
        np.eye(S) - GAMMA * np.einsum("sa,sat->st", policy, moves), np.einsum("sa,sac->sc", policy, reward)
    )
    q = reward + GAMMA * np.einsum("sat,tc->sac", moves, mean)
    return reward[alike], q[alike]


def trial(mdp: World, trajectories: int, seed: int, model: str = "fitted") -> dict:
    """Estimates from one log."""
    rows = log(mdp, trajectories, np.random.default_rng((seed, trajectories)))
    alike = np.arange(S) if model == "fitted" else np.arange(S) // 2 * 2
    reward, q = fitted(mdp, rows, alike)
    if model == "wrong":
        reward, q = reward + 0.5, q + 1.0
    s, a = rows.state, rows.action
    policy = mdp.policy[s][:, :, None]
    predicted = Predicted(
        reward=reward[s, a], policy_reward=(policy * reward[s]).sum(1), q=q[s, a], value=(policy * q[s]).sum(1)
    )
    decisions = Decisions(
        offsets=rows.offsets,
        reward=rows.reward,
        discount=discounts(rows.offsets, GAMMA),
        ratio=mdp.policy[s, a] / mdp.logged[s, a],
        predicted=predicted,
    )
    sums = summed(decisions, group_sizes(trajectories, trajectories), clipping_thresholds(len(s), trajectories))
    return estimates(sums, COLUMNS, LogStatistics(rows=len(s)), seed=seed)


def trials(
    mdp: World, trajectories: int, number: int, model: str = "fitted"
) -> Iterator[tuple[str, str, int, float, float]]:
    """Of every estimator and column: trials whose interval holds the truth, root mean squared error, mean width."""
    found = [trial(mdp, trajectories, seed, model) for seed in range(number)]
    for column, name in enumerate(COLUMNS):
        for estimator in found[0]["estimates"][name]:
            truth = float((mdp.decision if estimator in DECISION else mdp.trajectory)[column])
            of = [one["estimates"][name][estimator] for one in found]
            inside = sum(x["low"] <= truth <= x["high"] for x in of)
            error = float(np.sqrt(np.mean([(x["value"] - truth) ** 2 for x in of])))
            yield estimator, name, inside, error, float(np.mean([x["high"] - x["low"] for x in of]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 400, 1600])
    parser.add_argument("--model", choices=("fitted", "wrong"), default="fitted")
    parser.add_argument("--apart", type=float, default=0.5, help="how different the policies are")
    args = parser.parse_args()
    mdp = world(apart=args.apart)
    print(f"truth: a trajectory {mdp.trajectory.round(4)}, a decision {mdp.decision.round(4)}; columns {COLUMNS}")
    print(f"{'estimator':24} {'column':8} {'trajectories':>12} {'inside':>10} {'rmse':>8} {'width':>8}")
    for size in args.sizes:
        for estimator, column, inside, error, width in trials(mdp, size, args.trials, args.model):
            print(f"{estimator:24} {column:8} {size:12} {inside:6}/{args.trials} {error:8.4f} {width:8.4f}", flush=True)


if __name__ == "__main__":
    main()
