"""Conversion of a traced program to ONNX: one file with named axes and actions, and without paths of this machine."""

import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.packages import import_optional
from lockstep.torch.deploy.program import Program

METADATA = "lockstep"
"""The key of the JSON metadata that describes the model."""


def to_onnx(program: Program, actions: Sequence[str], metadata: str) -> bytes:
    """Convert a program to a serialized ONNX model.

    Args:
        program: the traced program.
        actions: names of the actions, for an additional output `action_name`. Empty: without this output.
        metadata: JSON.

    Raises:
        ConfigError: a package is missing.
    """
    onnx, _ = import_optional("onnx", "export"), import_optional("onnxscript", "export")
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # from the modules of torch and onnxscript
        exported: Any = torch.onnx.export(
            program.exported,
            input_names=list(program.axes),
            output_names=list(program.outputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = exported.model_proto
    _name_axes(model, program.axes)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    if actions:
        _name_actions(onnx, model, actions)
    model.producer_name = "lockstep"
    onnx.helper.set_model_props(model, {METADATA: metadata})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def run_onnx(path: Path, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run a model on the CPU with onnxruntime."""
    runtime = import_optional("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _name_axes(model: Any, axes: Mapping[str, str]) -> None:
    graph = model.graph
    symbols = {value.type.tensor_type.shape.dim[0].dim_param: axes[value.name] for value in graph.input}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_param = symbols[dim.dim_param]


def _name_actions(onnx: Any, model: Any, actions: Sequence[str]) -> None:
    """Add the output `action_name`: the name of each `action`, as text."""
    names = np.array([name.encode() for name in actions], dtype=object)
    model.graph.initializer.append(onnx.numpy_helper.from_array(names, "action_names"))
    model.graph.node.append(onnx.helper.make_node("Gather", ["action_names", "action"], ["action_name"]))
    axis = next(value.type.tensor_type.shape.dim[0].dim_param for value in model.graph.input)
    model.graph.output.append(onnx.helper.make_tensor_value_info("action_name", onnx.TensorProto.STRING, [axis]))


@contextmanager
def _quiet(name: str) -> Generator[None]:
    """Silence a logger's warnings about missing optional packages."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
