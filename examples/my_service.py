"""An HTTP service that acts with an exported policy; needs fastapi, uvicorn, onnxruntime and numpy, and no Lockstep.

    lockstep train cartpole --run-dir runs/served && lockstep export runs/served --format onnx
    POLICY=runs/served/policy.onnx uvicorn --app-dir examples my_service:app --port 8000
    curl -s localhost:8000/act -H 'content-type: application/json' -d '{"observations": [[0.0, 0.1, 0.02, -0.1]]}'

The policy was learned in an environment, from numbers and without recurrent layers. `GET /` describes it. N
observations of O numbers give N actions, in one call of ONNX Runtime.
"""

import json
import os
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

policy = os.environ.get("POLICY", "policy.onnx")
try:
    session = onnxruntime.InferenceSession(policy)
    about = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
except Exception as error:  # a wrong path, or a file of another program
    raise SystemExit(f"POLICY={policy} is not one that `lockstep export --format onnx` wrote: {error}") from None
if about["kind"] != "observations":
    raise SystemExit("a policy for features of a log, not for observations: see score_actions.py")
if "state_size" in about:
    raise SystemExit("a recurrent policy, which takes its last next_state too: this service keeps none")
if about["spec"].get("image"):
    raise SystemExit("a policy of images: this service takes vectors of numbers")
(model_input,) = session.get_inputs()
app = FastAPI(title="A policy")


class Observations(BaseModel):
    """The body of a request: N observations [N, O]."""

    observations: list[list[float]]


@app.get("/")
def describe() -> dict[str, Any]:
    """The exported task, and the versions that wrote the file."""
    return {"spec": about["spec"], "versions": about["versions"]}


@app.post("/act")
def act(body: Observations) -> dict[str, Any]:
    """The greedy action for each observation."""
    size = about["spec"]["observation_size"]
    if wrong := [i for i, row in enumerate(body.observations) if len(row) != size]:
        raise HTTPException(422, f"observation {wrong[0]} has {len(body.observations[wrong[0]])} numbers, not {size}")
    if not body.observations:
        return {"actions": []}
    (actions,) = session.run(["action"], {model_input.name: np.array(body.observations, np.float32)})
    return {"actions": np.asarray(actions).tolist()}
