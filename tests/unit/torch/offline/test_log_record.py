"""`lockstep offline record`: logged actions, propensities and ends of trajectories."""

from pathlib import Path

import numpy as np
import pytest
import torch

import made_data
import made_logs
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.cli import main as cli
from lockstep.data.dataset import Dataset
from lockstep.data.logs.format import read_log
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.envs.make import env_spec
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import RunningMoments
from lockstep.run import EnvConfig, NetworkConfig, OfflineRun, Run, dump
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.session.offline.recording import Recording, _uniform, record_at_random
from lockstep.session.policy_file import BEST_POLICY_FILE, POLICY_FILE
from lockstep.session.which_policy import read_policy
from lockstep.torch.export import load_policy, save_policy
from lockstep.torch.networks import Policy
from lockstep.torch.offline.record import record
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.scoring.policy import ScoringPolicy


def a_run(path, task="CartPole-v1", algo="ppo", normalized=False, epsilon=0.25, **env):
    """A run directory of an untrained policy, with opinions."""
    config = EnvConfig(**env)
    run = Run(task=task, algo=algo, env=config, network=NetworkConfig(hidden=(8,)))
    spec = env_spec(task, config)
    if algo == "dqn":
        policy = QPolicy(spec, run.network, DQNConfig(epsilon_end=epsilon), seed=3)
    else:
        policy = Policy(spec, run.network, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0.0, 0.7 * (parameter.ndim > 1), generator=generator)
    moments = None
    if normalized:
        moments = RunningMoments(spec.observation_size)
        seen = np.random.default_rng(0).normal(0.1, 0.5, (50, spec.observation_size))
        moments.update(moments.sums(seen, np.ones(50)))
    path.mkdir()
    (path / "run.yaml").write_text(dump(run))
    save_policy(path / POLICY_FILE, policy, moments, run)
    return path


def recorded(path, source, **options):
    recording = Recording(source=str(source), out=path, **options)
    told = record(recording, *read_policy(source)) if Path(source).is_dir() else record_at_random(recording)
    return told, made_logs.table(path)


def states(rows, ids=range(4)):
    return np.stack([rows[f"state:{k}"].to_numpy() for k in ids], 1).astype(np.float32)


def test_a_random_policy(tmp_path):
    told, rows = recorded(tmp_path / "a.jsonl", "CartPole-v1", episodes=40, seed=1)
    lengths = rows.group_by("mdp_id").len()["len"]
    assert told == {"task": "CartPole-v1", "rows": len(rows), "episodes": 40, "return_mean": lengths.mean()}
    assert len(lengths) == 40 and (rows["propensity"] == 0.5).all()
    assert abs((rows["action"] == "0").mean() - 0.5) < 0.1
    assert rows["possible_actions"].to_list() == [["0", "1"]] * len(rows)
    last = rows.sort("sequence_number").group_by("mdp_id").last()
    assert last["terminated"].all() and not last["truncated"].any()
    assert rows["terminated"].sum() == 40
    assert last["possible_next_actions"].to_list() == [[]] * 40


@pytest.mark.parametrize("vectorization", ["sync", "entry_point"])
def test_rows_are_what_the_environment_did(tmp_path, vectorization):
    """CartPole is deterministic: from a row's state, its action leads to the next row's."""
    import gymnasium

    env = EnvConfig(vectorization=vectorization)
    _, rows = recorded(tmp_path / "a.jsonl", "CartPole-v1", episodes=20, env=env)
    assert env_spec("CartPole-v1", env).autoreset == ("same_step" if vectorization == "sync" else "next_step")
    env = gymnasium.make("CartPole-v1").unwrapped
    checked = 0
    for _, one in rows.sort("mdp_id", "sequence_number").group_by("mdp_id", maintain_order=True):
        state = np.stack([one[f"state:{k}"].to_numpy() for k in range(4)], 1)
        assert one["sequence_number"].to_list() == list(range(len(one)))
        for i, action in enumerate(one["action"].to_list()):
            env.reset()
            env.state = state[i]
            after, reward, terminated, _, _ = env.step(int(action))
            assert reward == one["reward"][i] and terminated == one["terminated"][i]
            if i + 1 < len(one):
                np.testing.assert_allclose(after, state[i + 1], rtol=1e-5, atol=1e-6)
                checked += 1
    assert checked > 50


@pytest.mark.parametrize("vectorization", ["sync", "entry_point"])
def test_truncated_episode_logs_its_last_state(tmp_path, vectorization):
    run = a_run(tmp_path / "run", max_episode_steps=7, vectorization=vectorization)
    told, rows = recorded(tmp_path / "a.jsonl", run, episodes=9, epsilon=0.5)
    ends = rows.filter(rows["truncated"])
    assert told["episodes"] == 9 and len(ends) == 9 and set(ends["sequence_number"]) == {6}
    assert not rows["terminated"].any()
    assert rows["has_next_state"].to_list() == rows["truncated"].to_list()
    # The pole moves little in a step; another episode's first state would be near 0.
    far = np.abs(ends["next_state:1"].to_numpy() - ends["state:1"].to_numpy())
    assert (np.abs(far - 0.195) < 0.02).all()


@pytest.mark.parametrize("steps", [3, 100, 257])
def test_number_of_steps(tmp_path, steps):
    told, rows = recorded(tmp_path / "a.jsonl", "CartPole-v1", steps=steps)
    assert told["rows"] == len(rows) == steps
    last = rows.sort("sequence_number").group_by("mdp_id").last()
    assert (last["terminated"] | last["truncated"]).all()
    cut = rows.filter(rows["truncated"])
    assert 1 <= len(cut) <= 8 and cut["has_next_state"].all()


def test_greedy_decisions_are_certain(tmp_path):
    run = a_run(tmp_path / "run", normalized=True)
    _, rows = recorded(tmp_path / "a.jsonl", run, episodes=8)
    policy, moments = load_policy(run)
    scores, _ = policy(torch.from_numpy(moments.normalize(states(rows))))
    assert rows["action"].cast(int).to_list() == scores.argmax(-1).tolist()
    assert set(rows["action"]) == {"0", "1"} and (rows["propensity"] == 1.0).all()


def test_propensities_of_a_sampled_policy(tmp_path):
    run = a_run(tmp_path / "run", normalized=True)
    _, rows = recorded(tmp_path / "a.jsonl", run, steps=3000, how="sampled")
    policy, moments = load_policy(run)
    scores, _ = policy(torch.from_numpy(moments.normalize(states(rows))))
    taken = rows["action"].cast(int).to_numpy()
    p = scores.double().softmax(-1).detach().numpy()
    np.testing.assert_allclose(rows["propensity"], p[np.arange(len(p)), taken], rtol=1e-5)
    # The actions were drawn with them: the sum of (taken - p) is within four deviations of 0.
    spread = np.sqrt((p[:, 1] * (1 - p[:, 1])).sum())
    assert p[:, 1].std() > 0.02 and abs((taken - p[:, 1]).sum()) < 4 * spread


@pytest.mark.parametrize(("how", "epsilon", "random"), [("sampled", 0.0, 0.25), ("greedy", 0.4, 0.4)])
def test_propensities_of_epsilon_greedy(tmp_path, how, epsilon, random):
    run = a_run(tmp_path / "run", algo="dqn")
    _, rows = recorded(tmp_path / "a.jsonl", run, steps=3000, how=how, epsilon=epsilon)
    policy, _ = load_policy(run)
    best = policy(torch.from_numpy(states(rows)))[0].argmax(-1).numpy()
    followed = rows["action"].cast(int).to_numpy() == best
    np.testing.assert_allclose(rows["propensity"], np.where(followed, 1 - random / 2, random / 2))
    assert abs(followed.mean() - (1 - random / 2)) < 0.04


def learned(path, run):
    """A run directory of a policy that has nothing learned yet from the data of `run`."""
    dataset = Dataset.open(Path(run.data))
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
        spec=env_spec(run.task, EnvConfig()),
    )
    path.mkdir()
    (path / "run.yaml").write_text(dump(run))
    save_policy(path / POLICY_FILE, ScoringPolicy(about, seed=1), None, run)


@pytest.mark.parametrize(("policy", "how"), [("softmax", "sampled"), ("greedy", "greedy")])
def test_a_policy_that_was_learned_from_a_log(tmp_path, policy, how):
    """Played in its simulator by its own rule: softmax of its scores, or the best of them."""
    data = made_data.discrete(tmp_path / "data", rows=50, state_size=4, actions=2)
    run = OfflineRun(data=str(data), task="CartPole-v1", algorithm=OfflineDQNConfig(policy=policy, temperature=0.1))
    learned(tmp_path / "run", run)
    _, rows = recorded(tmp_path / "a.jsonl", tmp_path / "run", steps=300, how=how)
    loaded, _ = load_policy(tmp_path / "run")
    raw = loaded.network(loaded.state(torch.from_numpy(states(rows, loaded.info.state_features))))
    p = loaded.probability(raw, torch.ones_like(raw)).detach().numpy()
    taken = np.array([loaded.info.actions.index(name) for name in rows["action"]])
    np.testing.assert_allclose(rows["propensity"], p[np.arange(len(p)), taken], rtol=1e-4)
    assert (rows["propensity"].n_unique() > 10) == (policy == "softmax")


def test_recording_uses_names_of_training_log(tmp_path):
    """The log of a parametric policy holds the ids and the candidates of its training data, so both make one log."""
    log = tmp_path / "log.jsonl"
    possible = [{"push": 1.0}, {"pull": 1.0, "force": 2.0}]
    rows = [
        made_logs.row(
            i,
            mdp_id=str(i // 5),
            state_features={name: float((i * k) % 7) for k, name in enumerate(("a", "b", "c", "d"), 1)},
            action=possible[i % 2],
            possible_actions=possible,
            terminated=i % 5 == 4,
        )
        for i in range(60)
    ]
    made_logs.write(log, rows)
    data = prepare_dataset([log], tmp_path / "data", PrepareOptions())
    learned(tmp_path / "run", OfflineRun(data=str(data), task="CartPole-v1", algo="parametric_dqn"))
    _, played = recorded(tmp_path / "played.jsonl", tmp_path / "run", steps=40, epsilon=1.0)
    assert [name for name in played.columns if name.startswith("state:")] == [f"state:{k}" for k in "abcd"]
    taken = [tuple(played.select("action:push", "action:pull", "action:force").row(i)) for i in range(40)]
    assert set(taken) == {(1.0, None, None), (None, 1.0, 2.0)}
    both = prepare_dataset([log, tmp_path / "played.jsonl"], tmp_path / "both", PrepareOptions())
    info = Dataset.open(both).info
    assert info.num_rows == 100 and list(info.candidates) == list(Dataset.open(data).info.candidates) != []


def test_a_policy_without_a_simulator(tmp_path):
    (a_run(tmp_path / "run") / "run.yaml").write_text(dump(OfflineRun(data="data")))
    with pytest.raises(ConfigError, match="learned from a log and has no task to play; train it with --set task=ID"):
        recorded(tmp_path / "a.jsonl", tmp_path / "run", episodes=1)


@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_continuous_actions(tmp_path, how):
    run = a_run(tmp_path / "run", task="Pendulum-v1", max_episode_steps=20)
    _, rows = recorded(tmp_path / "a.parquet", run, episodes=4, how=how)
    assert read_log([tmp_path / "a.parquet"]).kind == "parametric"
    assert "propensity" not in rows.columns and rows["action:3"].abs().max() <= 2.0 and len(rows) == 80
    assert ("log_probability" in rows.columns) == (how == "sampled"), "a greedy policy has no density"
    assert rows["truncated"].sum() == 4
    _, rows = recorded(tmp_path / "b.parquet", "Pendulum-v1", steps=400)
    assert rows["action:3"].min() < -1.8 and rows["action:3"].max() > 1.8
    assert rows["log_probability"].to_numpy() == pytest.approx(np.full(400, np.log(0.25))), "uniform in [-2, 2]"


def test_a_random_policy_has_no_density_in_a_number_with_one_value():
    """The density is that of the other numbers; all of it was infinite."""
    action = ActionSpec("continuous", (2,), (-2.0, 0.3), (2.0, 0.3))
    choose = _uniform(EnvSpec(3, action, "same_step", separately_seedable=True))
    drawn, log_density = choose(np.zeros((5, 3)), np.random.default_rng(0).random((5, 2)))
    assert (drawn[:, 1] == np.float32(0.3)).all() and drawn[:, 0].std() > 0.1
    assert log_density == pytest.approx(np.full(5, np.log(0.25)))


@pytest.mark.parametrize("task", ["CartPole-v1", "lockstep/Corridor-v0"])
def test_same_seed_same_log(tmp_path, task):
    made = []
    for name, seed in (("a.jsonl", 1), ("b.jsonl", 1), ("c.jsonl", 2)):
        recorded(tmp_path / name, task, episodes=10, seed=seed)
        made.append((tmp_path / name).read_text())
    assert made[0] == made[1] != made[2]
    assert not {line.split(",")[0] for line in made[0].splitlines()} & {
        line.split(",")[0] for line in made[2].splitlines()
    }


def test_environments_use_separate_random_streams(tmp_path):
    _, rows = recorded(tmp_path / "a.jsonl", "CartPole-v1", episodes=8)
    first = rows.sort("sequence_number").group_by("mdp_id").agg("action")["action"].to_list()
    assert len({tuple(one[:8]) for one in first}) > 4


def test_the_command(tmp_path, capsys):
    out = tmp_path / "log.jsonl.zst"
    assert cli.main(["offline", "record", "CartPole-v1", "--out", str(out), "--episodes", "3", "--seed", "2"]) == 0
    said = capsys.readouterr().out
    rows = made_logs.table(out)
    assert said.startswith(f"{out}: {len(rows)} rows of CartPole-v1, 3 whole episodes, mean return ")
    assert rows["mdp_id"].unique().sort().to_list() == ["2-0-0", "2-1-0", "2-2-0"]
    assert cli.main(["offline", "record", "CartPole-v1", "--out", str(tmp_path / "one.jsonl"), "--episodes", "1"]) == 0
    assert " rows of CartPole-v1, 1 whole episode, mean return " in capsys.readouterr().out
    run = a_run(tmp_path / "run", algo="dqn")
    command = ["offline", "record", str(run), "--out", str(tmp_path / "b.parquet"), "--steps", "50", "--epsilon", "0.5"]
    assert cli.main(command) == 0
    assert set(made_logs.table(tmp_path / "b.parquet")["propensity"]) == {0.75, 0.25}


def test_the_best_policy_and_a_file_are_recorded(tmp_path, capsys):
    run, other = a_run(tmp_path / "run"), tmp_path / "run" / BEST_POLICY_FILE
    about = Run(task="CartPole-v1", network=NetworkConfig(hidden=(8,)))
    always_right = Policy(env_spec("CartPole-v1", EnvConfig()), about.network, seed=3)
    with torch.no_grad():
        for value in always_right.parameters():
            value.copy_(torch.tensor([0.0, 1.0]) if value.shape == (2,) else torch.zeros(()))
    save_policy(other, always_right, None, about)
    for number, words in enumerate(([str(run), "--best"], [str(other)], [str(run)], [str(run / POLICY_FILE)])):
        log = tmp_path / f"{number}.jsonl"
        assert cli.main(["offline", "record", *words, "--out", str(log), "--steps", "200"]) == 0
        assert (set(made_logs.table(log)["action"]) == {"1"}) == (number < 2), words
        assert ("lockstep: note: the log is of " in capsys.readouterr().err) == (number < 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["CartPole-v1", "--epsilon", "0.5"], "is a task, not a run directory, and is played at random"),
        (["CartPole-v1", "--sampled"], "is a task, not a run directory, and is played at random"),
        (["RUN", "--sampled", "--epsilon", "0.5"], "leave one out"),
        (["RUN", "--steps", "3", "--episodes", "3"], "--episodes 3 and --steps 3 both say how many; leave one out"),
        (["RUN", "--epsilon", "1.5"], "--epsilon 1.5 must be a probability, from 0 to 1"),
        (["RUN", "--episodes", "0"], "--episodes 0 must be"),
        (["PENDULUM", "--epsilon", "0.5"], "is for tasks with named actions"),
        (["EMPTY"], "has no policy.safetensors and no checkpoint"),
        (["COPY"], "has no run.yaml beside it, which names the task; give a directory below runs/"),
        (["RUN", "--best"], "has no policy_best.safetensors"),
        (["RUN", "--checkpoint", "7"], "has no checkpoint of this step; it has none"),
        (["CartPole-v1", "--best"], "--best chooses among the policies of a run, and CartPole-v1 is no run directory;"),
        (["STEP"], "step_7 does not exist; give a run directory, such as runs/NAME"),
        (["GREEDY", "--sampled"], "always takes its best action; leave --sampled out, or explore with --epsilon P"),
        (["nothing.safetensors"], "nothing.safetensors does not exist; give a run directory, such as runs/NAME"),
        (["NoSuchTask-v0"], "NoSuchTask"),
        (["lockstep/Match-v0"], "takes several choices at once, and a log names one"),
        (["lockstep/Cartpole-v0"], "actions have no bounds to draw from; record a run of it"),
    ],
)
def test_invalid_recording_is_rejected(tmp_path, capsys, words, says):
    (tmp_path / "empty").mkdir()
    places = {
        "RUN": lambda: a_run(tmp_path / "run"),
        "PENDULUM": lambda: a_run(tmp_path / "pendulum", task="Pendulum-v1"),
        "EMPTY": lambda: tmp_path / "empty",
        "STEP": lambda: a_run(tmp_path / "run") / "checkpoints" / "step_7",
        "GREEDY": lambda: a_run(tmp_path / "run", algo="dqn", epsilon=0.0),
        "COPY": lambda: (a_run(tmp_path / "run") / POLICY_FILE).rename(tmp_path / "empty" / POLICY_FILE),
    }
    words = [str(places[word]()) if word in places else word for word in words]
    assert cli.main(["offline", "record", *words, "--out", str(tmp_path / "a.jsonl")]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl")) and not list(tmp_path.glob(".*"))


def test_existing_log_is_kept(tmp_path):
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        record_at_random(Recording(source="CartPole-v1", out=tmp_path / "a.jsonl", episodes=1))
    assert (tmp_path / "a.jsonl").read_text() == "mine"
