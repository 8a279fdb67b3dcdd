"""Score actions with what `lockstep export RUN --format onnx` wrote; needs onnxruntime and numpy, and no Lockstep.

python score_actions.py policy.onnx '{"0": 0.02, "1": -0.4}' '{"1": 0.3}'     # one state each: {feature id: value}
python score_actions.py policy.onnx '{"0": 0.02, "possible_actions": ["left", "right"]}'   # where the log had masks

Of continuous actions it prints the action. Policies that were learned in an environment: `my_service.py`.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime

if len(sys.argv) < 3:
    sys.exit(__doc__)
try:
    session = onnxruntime.InferenceSession(sys.argv[1])
    about = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
except Exception as error:  # a wrong path, or a file of another program
    sys.exit(f"{sys.argv[1]} is not a policy that `lockstep export --format onnx` wrote: {error}")
features = about.get("state_features") or sys.exit("a policy for observations, not for a log: see my_service.py")
continuous = about["kind"] == "continuous"


def state_of(text: str) -> dict[str, Any]:
    """A state from its JSON, with numbers as such: whole ones and those in quotes, too."""
    try:
        state = json.loads(text)
        return state | {name: float(state[name]) for name in {*features}.intersection(state) if state[name] is not None}
    except (TypeError, ValueError):
        sys.exit(f'{text} is not a state; write a map of numbers in JSON, such as {{"{features[0]}": 0.5}}')


def raw(rows: list[dict[str, float]], features: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Values [rows, features], and which of them a row has: absent and null ones need no value."""
    if unknown := sorted({name for row in rows for name in row} - set(features)):
        sys.exit(f"unknown feature {', '.join(unknown)}; this policy knows {', '.join(features)}")
    value = np.array([[row.get(name) or 0.0 for name in features] for row in rows], np.float64)
    return value, np.array([[row.get(name) is not None for name in features] for row in rows])


def marked(chosen: list[str]) -> list[bool]:
    """Which of the policy's actions a list names."""
    if unknown := sorted(set(chosen) - set(about["actions"])):
        sys.exit(f"unknown action {', '.join(unknown)}; this policy knows {', '.join(about['actions'])}")
    return [name in chosen for name in about["actions"]]


states, inputs = [state_of(text) for text in sys.argv[2:]], {}
if about.get("needs_possible_actions"):  # some actions of the log were not possible everywhere; without a list, all are
    possible = [marked(state.pop("possible_actions", about["actions"])) for state in states]
    inputs["possible_actions"] = np.array(possible)
inputs["state_value"], inputs["state_presence"] = raw(states, features)
if about["kind"] == "parametric":  # actions are features: every state is offered the same candidates here
    candidates = about["candidates"] or sys.exit("the log offered other candidates in every row: list yours here")
    action_value, action_presence = raw(candidates * len(states), about["action_features"])
    inputs |= {"action_value": action_value, "action_presence": action_presence}
    inputs["state_of_candidate"] = np.repeat(np.arange(len(states)), len(candidates))
outputs = session.run(["action" if continuous else "scores"], inputs)[0].reshape(len(states), -1)
names = about.get("actions") or (about["action_features"] if continuous else list(map(json.dumps, about["candidates"])))
for row in outputs:  # a score of -1e9: an action that is left out
    value_by_name = {name: float(f"{number:.6g}") for name, number in zip(names, row, strict=True)}
    print(value_by_name, *([] if continuous else ["->", names[row.argmax()] if row.max() > -1e9 else "nothing"]))
