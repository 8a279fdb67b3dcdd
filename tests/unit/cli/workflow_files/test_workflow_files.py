"""Classic workflow files: each field works, or is refused by its name with the reason."""

import json
from operator import attrgetter
from pathlib import Path

import pytest

from lockstep.cli.workflow_files.fields import CLASSIC_NAMES, FIELDS
from lockstep.cli.workflow_files.files import cache_root, is_workflow, read
from lockstep.errors import ConfigError
from lockstep.run import to_dict

NOTED = {
    "dqn.json": [
        "init_method",
        "rl.epsilon",
        "rl.time_diff_unit_length",
        "rl.predictor_rtol_check",
        "rainbow.bcq_drop_threshold",
        "training.lr_decay",
    ],
    "parametric_dqn.json": ["init_method", "rl.epsilon"],
    "dqn_on_two_machines.yaml": [],
}
"""The fields of the examples that have no effect."""
EXAMPLES = Path(__file__).parents[4] / "examples" / "workflows"
DQN = {"training_data_path": "log.json", "actions": ["4", "5"]}
PARAMETRIC = {"training_data_path": "log.json", "action_norm_data_path": "action_norm.json"}

WORKS = [
    # section, field, value, our setting, what it then is
    ("", "model_output_path", "outputs/", "model_path", "outputs"),
    ("", "epochs", 100, "epochs", 100),
    ("", "use_gpu", False, "device", "cpu"),
    ("", "use_gpu", True, "device", "auto"),
    ("rl", "gamma", 0.9, "algorithm.gamma", 0.9),
    ("rl", "gamma", 1, "algorithm.gamma", 1.0),
    ("rl", "target_update_rate", 0.2, "algorithm.target_rate", 0.2),
    ("rl", "maxq_learning", 0, "algorithm.maxq", False),
    ("rl", "maxq_learning", True, "algorithm.maxq", True),
    ("rl", "temperature", 0.1, "algorithm.temperature", 0.1),
    ("rl", "softmax_policy", 1, "algorithm.policy", "softmax"),
    ("rl", "softmax_policy", 0, "algorithm.policy", "greedy"),
    ("rl", "reward_boost", {"4": 0.5}, "algorithm.reward_boost", {"4": 0.5}),
    ("rl", "use_seq_num_diff_as_time_diff", True, "algorithm.use_time_diff", True),
    ("rl", "time_diff_unit_length", 60, "algorithm.time_diff_unit", 1.0),  # without use_seq_num_diff_as_time_diff
    ("rl", "multi_steps", 3, "algorithm.n_step", 3),
    ("rl", "multi_steps", None, "algorithm.n_step", 1),
    ("rl", "q_network_loss", "huber", "algorithm.loss", "huber"),
    ("rl", "q_network_loss", "mse", "algorithm.loss", "mse"),
    ("rl", "tensorboard_logging_freq", 7, "log_every", 7 * 512),
    ("rainbow", "double_q_learning", False, "algorithm.double", False),
    ("rainbow", "dueling_architecture", True, "algorithm.dueling", True),
    ("rainbow", "bcq", True, "algorithm.bcq_threshold", 0.1),
    ("rainbow", "bcq", False, "algorithm.bcq_threshold", None),
    ("rainbow", "bcq_drop_threshold", 0.5, "algorithm.bcq_threshold", None),
    ("training", "layers", [-1, 32, 16, 8, -1], "network.hidden", (32, 16, 8)),
    ("training", "layers", [-1, -1], "network.hidden", ()),
    ("training", "layers", [-1, 32, 2], "network.hidden", (32,)),
    ("training", "activations", ["tanh", "tanh", "linear"], "network.activation", "tanh"),
    ("training", "minibatch_size", 256, "algorithm.batch_size", 256),
    ("training", "learning_rate", 1e-4, "algorithm.learning_rate", 1e-4),
    ("training", "optimizer", "SGD", "algorithm.optimizer", "sgd"),
    ("training", "optimizer", "ADAM", "algorithm.optimizer", "adam"),
    ("training", "lr_policy", "fixed", "algorithm.learning_rate_schedule", "constant"),
    ("training", "lr_policy", "exponential", "algorithm.learning_rate_schedule", "exponential"),
    ("training", "lr_decay", 0.999, "algorithm.learning_rate_decay", 1.0),
    ("training", "l2_decay", 0.01, "algorithm.l2_decay", 0.01),
    ("training", "clip_grad_norm", 5, "algorithm.max_grad_norm", 5.0),
    ("training", "clip_grad_norm", None, "algorithm.max_grad_norm", None),
    ("evaluation", "calc_cpe_in_training", True, "estimate_every", 1),
    ("evaluation", "calc_cpe_in_training", False, "algorithm.estimate", False),
]
REFUSED = [
    # section, field, value, what the reason says
    ("", "in_training_cpe", {"mdp_sampled_rate": 0.1}, "calc_cpe_in_training"),
    ("", "actor_training", {"layers": []}, "continuous actions"),
    ("", "critic_training", {"layers": []}, "continuous actions"),
    ("", "shared_training", {"minibatch_size": 1}, "continuous actions"),
    ("", "action_rescale_map", {"1": [0, 1]}, "continuous actions"),
    ("", "state_feature_params", {"state_feature_names_override": ["a"]}, "normalization file"),
    ("", "target_action_distribution", [0.5, 0.5], "does not exist"),
    ("", "num_nodes", 0, "at least 1"),
    ("", "num_nodes", 2, "init_method"),
    ("", "node_index", 1, "num_nodes"),
    ("", "init_method", "env://", "file:///PATH"),
    ("", "init_method", "file://", "file:///PATH"),
    ("", "use_gpu", "yes", "true or false"),
    ("", "training_data_path", "", "cannot be empty"),
    ("", "training_data_path", [], "cannot be empty"),
    ("", "epochs", 0, "at least 1"),
    ("", "epochs", "many", "a whole number"),
    ("", "actions", ["4", "4"], "twice"),
    ("norm_params", "cols_to_norm", ["reward"], "state_features and action"),
    ("norm_params", "num_samples", "all", "a whole number"),
    ("rl", "gamma", 1.5, "must lie in"),
    ("rl", "target_update_rate", 0, "must lie in"),
    ("rl", "maxq_learning", 2, "true or false"),
    ("rl", "temperature", 0, "greater than 0"),
    ("rl", "softmax_policy", "softmax", "true or false"),
    ("rl", "reward_burnin", 1000, "from the start"),
    ("rl", "set_missing_value_to_zero", True, "absent feature"),
    ("rl", "q_network_loss", "l1", "one of mse, huber"),
    ("rl", "q_network_loss", "bce", "gamma=0"),
    ("rl", "tensorboard_logging_freq", -1, "negative"),
    ("rl", "multi_steps", 0, "at least 1"),
    ("rainbow", "categorical", True, "lockstep train"),
    ("rainbow", "quantile", True, "lockstep train"),
    ("training", "layers", [4, 32, -1], "must be -1"),
    ("training", "layers", [-1], "must be -1"),
    ("training", "layers", [-1, 0, -1], "must be -1"),
    ("training", "layers", [-1, 32, 3], "must be -1"),
    ("training", "activations", ["relu", "tanh", "linear"], "the same everywhere"),
    ("training", "activations", ["relu", "relu", "relu"], "linear at the end"),
    ("training", "activations", ["swish", "linear"], "relu, tanh, elu"),
    ("training", "minibatch_size", 0, "at least 1"),
    ("training", "learning_rate", -1, "greater than 0"),
    ("training", "optimizer", "LAMB", "ADAM, SGD"),
    ("training", "lr_policy", "step", "exponential"),
    ("training", "l2_decay", -1, "at least 0"),
    ("training", "clip_grad_norm", 0, "greater than 0"),
    ("training", "dropout_ratio", 0.5, "no dropout"),
    ("training", "use_batch_norm", True, "minibatches"),
    ("training", "use_layer_norm", True, "does not exist"),
    ("training", "use_noisy_linear_layers", True, "simulator"),
    ("training", "weight_init_min_std", 0.1, "does not exist"),
    ("training", "minibatches_per_step", 4, "larger minibatch_size"),
    ("training", "cnn_parameters", {"conv_dims": [3]}, "images"),
    ("training", "factorization_parameters", {"rank": 3}, "does not exist"),
]
CHANGES_NOTHING = [
    ("rl", "epsilon", 0.2),
    ("rl", "predictor_atol_check", 1e-3),
    ("rl", "predictor_rtol_check", 5e-5),
    ("rl", "ratio_different_predictions_tolerance", 0.1),
    ("rainbow", "num_atoms", 51),
    ("rainbow", "qmin", -100.0),
    ("rainbow", "qmax", 200.0),
    ("rainbow", "c51_l2_decay", 0.1),
    ("", "init_method", "file:///shared/x.lock"),  # of one node; the others without what they belong to
    ("rl", "time_diff_unit_length", 60.0),
    ("rainbow", "bcq_drop_threshold", 0.5),
    ("training", "lr_decay", 0.999),
]
EFFECTIVE = [
    # section, field, value, the field that it belongs to and its value
    ("", "init_method", "file:///shared/x.lock", "num_nodes", 2),
    ("rl", "time_diff_unit_length", 60.0, "use_seq_num_diff_as_time_diff", True),
    ("rainbow", "bcq_drop_threshold", 0.5, "bcq", 1),
    ("training", "lr_decay", 0.999, "lr_policy", "exponential"),
]
ELSEWHERE = {
    # fields that the tests below look at
    ("", "training_data_path"), ("", "eval_data_path"), ("", "state_norm_data_path"), ("", "action_norm_data_path"),
    ("", "use_all_avail_gpus"), ("norm_params", "output_dir"), ("norm_params", "max_unique_enum_values"),
    ("norm_params", "quantile_size"), ("norm_params", "quantile_k2_threshold"), ("norm_params", "skip_box_cox"),
    ("", "max_episode_steps"), ("", "columns"),
    ("norm_params", "skip_quantiles"), ("norm_params", "feature_overrides"), ("training", "warm_start_model_path"),
}  # fmt: skip


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """`workflow(base, section, field, value)` reads a file with one field more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCKSTEP_CACHE", raising=False)

    def make(base, section="", field=None, value=None):
        data = {name: dict(item) if isinstance(item, dict) else item for name, item in base.items()}
        if field is not None:
            (data.setdefault(section, {}) if section else data)[field] = value
        (tmp_path / "w.json").write_text(json.dumps(data))
        return read("w.json")

    return make


def named(section, field):
    return f"{section}.{field}" if section else field


@pytest.mark.parametrize(("section", "field", "value", "setting", "expected"), WORKS)
def test_a_field_becomes_a_setting(workflow, section, field, value, setting, expected):
    assert attrgetter(setting)(workflow(DQN, section, field, value).run) == expected


@pytest.mark.parametrize(("section", "field", "value", "reason"), REFUSED)
def test_a_field_is_refused_by_its_name(workflow, section, field, value, reason):
    with pytest.raises(ConfigError) as told:
        workflow(DQN, section, field, value)
    assert named(section, field) in str(told.value), "it names the field"
    assert reason in str(told.value)
    assert str(told.value).startswith("w.json: "), "it names the file"
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("section", "field", "value"), CHANGES_NOTHING)
def test_ineffective_field_is_noted(workflow, section, field, value):
    plain, told = workflow(DQN), workflow(DQN, section, field, value)
    assert told.run == plain.run
    (note,) = set(told.notes) - set(plain.notes)
    assert note.startswith(f"{named(section, field)}={value} changes nothing: ")


@pytest.mark.parametrize(("section", "field", "value", "switch", "on"), EFFECTIVE)
def test_a_field_that_another_switches_on_is_not_noted(workflow, section, field, value, switch, on):
    base = DQN | ({section: {switch: on}} if section else {switch: on})
    assert not [note for note in workflow(base, section, field, value).notes if "changes nothing" in note]
    nothing = {str: "", float: 0.0}[type(value)]
    assert not [note for note in workflow(DQN, section, field, nothing).notes if "changes nothing" in note]


def test_neutral_values_of_unsupported_fields_are_accepted(workflow):
    """Files that programs wrote name every field."""
    nothing = {bool: False, int: 0, float: 0.0, dict: {}, list: [], str: ""}
    plain = workflow(DQN).run
    for section, fields in FIELDS.items():
        for name, field in fields.items():
            if field.why:
                for value in (None, nothing[field.kind], *field.neutral):
                    assert workflow(DQN, section, name, value).run == plain, (name, value)


def test_every_field_is_tested():
    tested = {row[:2] for table in (WORKS, REFUSED, CHANGES_NOTHING) for row in table} | ELSEWHERE
    assert {(section, name) for section, fields in FIELDS.items() for name in fields} == tested


@pytest.mark.parametrize(
    ("section", "field", "meant"),
    [
        ("", "epoch", "epochs"),
        ("", "gamma", "rl.gamma"),
        ("", "minibatch_size", "training.minibatch_size"),
        ("rl", "target_rate", "rl.target_update_rate"),
        ("rl", "learning_rate", "training.learning_rate"),
        ("training", "layer", "training.layers"),
        ("rainbow", "double_q", "rainbow.double_q_learning"),
    ],
)
def test_an_unknown_field_is_refused_with_what_may_be_meant(workflow, section, field, meant):
    with pytest.raises(ConfigError, match=f"unknown field {named(section, field)}; did you mean .*{meant}"):
        workflow(DQN, section, field, 1)


def test_a_section_must_be_a_mapping(workflow):
    with pytest.raises(ConfigError, match=r"rl=\[1\] must be a mapping"):
        workflow(DQN, "", "rl", [1])


def test_errors_use_classic_field_names(workflow):
    with pytest.raises(ConfigError, match=r"rainbow\.bcq_drop_threshold=2"):
        workflow(DQN | {"rainbow": {"bcq": True}}, "rainbow", "bcq_drop_threshold", 2.0)
    with pytest.raises(ConfigError, match=r"rl\.multi_steps=3 and use_time_diff=true contradict"):
        workflow(DQN | {"rl": {"use_seq_num_diff_as_time_diff": True}}, "rl", "multi_steps", 3)


# -- which learner -----------------------------------------------------------------------------------------------------


def test_learner_is_inferred_and_printed(workflow):
    dqn, parametric = workflow(DQN), workflow(PARAMETRIC)
    assert (dqn.run.algo, dqn.kind, dqn.actions) == ("dqn", "discrete", ("4", "5"))
    assert dqn.notes[0] == "learner: dqn (actions: 4, 5)"
    assert (parametric.run.algo, parametric.kind, parametric.actions) == ("parametric_dqn", "parametric", None)
    assert parametric.notes[0].startswith("learner: parametric_dqn (action_norm_data_path")


def test_learner_is_inferred_from_cols_to_norm(workflow):
    asked = {"training_data_path": "log.json", "norm_params": {"cols_to_norm": ["state_features", "action"]}}
    assert workflow(asked).run.algo == "parametric_dqn"


def test_ambiguity_is_refused(workflow):
    with pytest.raises(ConfigError, match="actions and action_norm_data_path contradict"):
        workflow(DQN | PARAMETRIC)
    with pytest.raises(ConfigError, match="neither actions nor action_norm_data_path"):
        workflow({"training_data_path": "log.json"})
    with pytest.raises(ConfigError, match="actions with names have no features"):
        workflow(DQN, "norm_params", "cols_to_norm", ["state_features", "action"])


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("rl", "reward_boost", {"4": 1.0}), ("rainbow", "bcq", True)],
)
def test_what_needs_names_is_refused_where_actions_are_features(workflow, section, field, value):
    with pytest.raises(ConfigError, match=rf"{section}\.{field}.*named actions"):
        workflow(PARAMETRIC, section, field, value)


def test_parametric_networks_have_one_output(workflow):
    assert workflow(PARAMETRIC, "training", "layers", [-1, 64, 1]).run.network.hidden == (64,)
    with pytest.raises(ConfigError, match="layers"):
        workflow(PARAMETRIC, "training", "layers", [-1, 64, 2])


# -- data --------------------------------------------------------------------------------------------------------------


def test_data_is_prepared_in_the_cache_under_a_name_that_options_decide(workflow, monkeypatch, tmp_path):
    first = workflow(DQN)
    assert Path(first.run.data).parent == cache_root()
    assert Path(first.run.data).name.startswith("log-")
    assert workflow(DQN | {"epochs": 3}).run.data == first.run.data, "what is prepared does not depend on the learner"
    others = [workflow(DQN, "norm_params", "num_samples", 7), workflow(DQN | {"actions": ["4"]}), workflow(PARAMETRIC)]
    assert len({first.run.data, *(other.run.data for other in others)}) == 4
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    assert Path(workflow(DQN).run.data).parent == tmp_path / "cache"


def test_evaluation_data_has_a_place_of_its_own(workflow):
    found = workflow(DQN, "", "eval_data_path", "eval.json")
    assert found.evaluation.paths == (Path("eval.json"),)
    assert found.run.eval_data not in (None, found.run.data)
    same = workflow(DQN, "", "eval_data_path", "./log.json")
    assert (same.evaluation, same.run.eval_data) == (None, None), "the training data need not be prepared twice"


def test_several_logs(workflow):
    assert workflow(DQN, "", "training_data_path", ["a.json", "~/b"]).training.paths == (
        Path("a.json"),
        Path.home() / "b",
    )


def test_normalizations(workflow):
    params = {"output_dir": "norms/", "cols_to_norm": ["state_features"], "num_samples": 5, "skip_box_cox": True}
    found = workflow(PARAMETRIC | {"state_norm_data_path": "s.json", "norm_params": params})
    state, action = found.normalizations
    assert (state.path, state.output, state.identify) == (
        Path("s.json"),
        Path("norms/state_features_norm.json"),
        True,
    )
    assert (action.column, action.path, action.identify) == ("action", Path("action_norm.json"), False)
    assert found.norm_params == {"num_samples": 5, "skip_box_cox": True}


def test_what_a_log_needs_to_be_read_right(workflow):
    """Two fields of ours: a classic file has no word for a limit of steps, or for other names of columns."""
    found = workflow(DQN | {"max_episode_steps": 200}, "", "columns", {"reward": "r"})
    assert (found.max_episode_steps, found.columns) == (200, {"reward": "r"})
    assert found.run.data != workflow(DQN).run.data


def test_parameters_of_the_normalization(workflow):
    params = {
        "max_unique_enum_values": 5,
        "quantile_size": 4,
        "quantile_k2_threshold": 10,
        "skip_box_cox": False,
        "skip_quantiles": True,
        "feature_overrides": {"0": "CONTINUOUS"},
    }
    assert workflow(DQN | {"norm_params": params}).norm_params == params | {"feature_overrides": {"0": "continuous"}}


# -- machines ----------------------------------------------------------------------------------------------------------


def test_gpus(workflow):
    assert workflow(DQN, "", "use_all_avail_gpus", True).all_gpus
    assert not workflow(DQN, "", "use_gpu", True).all_gpus
    assert workflow(DQN, "", "use_all_avail_gpus", False).run.device == "cpu"
    with pytest.raises(ConfigError, match="use_all_avail_gpus=true and use_gpu=false contradict"):
        workflow(DQN | {"use_gpu": False}, "", "use_all_avail_gpus", True)


def test_where_nodes_meet(workflow):
    two = DQN | {"num_nodes": 2, "node_index": 1}
    assert workflow(two, "", "init_method", "file:///shared/x.lock").init_file == Path("/shared/x.lock")
    assert workflow(two, "", "init_method", "tcp://10.0.0.1:5555").endpoint == "10.0.0.1:5555"
    one = workflow(DQN, "", "init_method", "file:///shared/x.lock")
    assert (one.num_nodes, one.init_file) == (1, None), "one node meets nobody"


def test_a_policy_to_start_from(workflow):
    assert workflow(DQN, "training", "warm_start_model_path", "runs/old").init_from == Path("runs/old")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_field_that_is_there_twice_is_refused(tmp_path):
    """A sample file of the classic pipeline has it: its evaluation data would be trained on."""
    (tmp_path / "w.json").write_text('{"training_data_path": "a", "training_data_path": "b"}')
    with pytest.raises(ConfigError, match=r"training_data_path is there twice, 'a' and 'b'.*eval_data_path"):
        read(tmp_path / "w.json")
    (tmp_path / "w.yaml").write_text("training_data_path: a\nrl: {gamma: 1, gamma: 0.5}\n")
    with pytest.raises(ConfigError, match="gamma is there twice"):
        read(tmp_path / "w.yaml")


def test_json_may_have_tabs_and_tells_the_line_of_a_mistake(tmp_path):
    (tmp_path / "w.json").write_text('{\n\t"training_data_path": "a",\n\t"actions": ["0", "1"]\n}')
    assert read(tmp_path / "w.json").run.algo == "dqn"
    (tmp_path / "w.json").write_text('{\n "training_data_path": "a",,\n}')
    with pytest.raises(ConfigError, match=r"w\.json, line 2 is not JSON"):
        read(tmp_path / "w.json")


def test_which_files_are_workflows(tmp_path):
    (tmp_path / "ours.yaml").write_text("data: data/\nalgo: dqn\n")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "w.yml").write_text("training_data_path: a\n")
    answers = {name: is_workflow(tmp_path / name) for name in ("ours.yaml", "list.json", "w.yml", "missing.json", ".")}
    assert answers == {"ours.yaml": False, "list.json": False, "w.yml": True, "missing.json": False, ".": False}


def test_classic_names_reach_our_settings(workflow):
    run = to_dict(workflow(DQN).run)
    known = {*run, *run["algorithm"], *run["network"]}
    assert set(CLASSIC_NAMES.values()) <= known
    assert CLASSIC_NAMES["minibatch_size"] == "batch_size"
    assert CLASSIC_NAMES["target_update_rate"] == "target_rate"


@pytest.mark.parametrize("name", ["dqn.json", "parametric_dqn.json", "dqn_on_two_machines.yaml"])
def test_sample_files_are_read_with_notes_on_defaults(name):
    found = read(EXAMPLES / name)
    assert found.run.algo == name.split(".")[0].removesuffix("_on_two_machines")
    assert found.run.network.hidden == (128, 64)
    assert not [note for note in found.notes if note.startswith("left out")]
    noted = [note.partition("=")[0] for note in found.notes if " changes nothing: " in note]
    assert noted == NOTED[name]


def test_defaults_that_differ_from_the_classic_ones_are_said(workflow):
    (note,) = [note for note in workflow(DQN).notes if note.startswith("left out")]
    assert "rl.gamma=0.99 (0.9)" in note
    assert "rl.gamma" not in " ".join(workflow(DQN, "rl", "gamma", 0.9).notes)


def test_the_guide_names_every_field():
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "coming-from-reagent.md").read_text()
    names = {
        section if section == "norm_params" else named(section, name)
        for section, fields in FIELDS.items()
        for name, field in fields.items()
        if "continuous actions" not in field.why
    }
    assert [name for name in sorted(names) if f"`{name}" not in guide] == []
