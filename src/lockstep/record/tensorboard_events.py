"""Entries of TensorBoard's event files, made by the `tensorboard` package: numbers, texts and videos."""

import struct
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_PROTO = "tensorboard.compat.proto."


def event(step: int, wall_time: float, values: Mapping[str, float | str | bytes]) -> Any:
    """An entry with values by name: numbers, texts in Markdown, and GIFs, which TensorBoard plays."""
    made = [_value(name, value) for name, value in values.items()]
    summary = import_module(f"{_PROTO}summary_pb2").Summary(value=made)
    return import_module(f"{_PROTO}event_pb2").Event(wall_time=wall_time, step=step, summary=summary)


def start_after(step: int) -> Any:
    """An entry that has TensorBoard forget what earlier files have after a step."""
    pb = import_module(f"{_PROTO}event_pb2")
    return pb.Event(wall_time=time.time(), step=step + 1, session_log=pb.SessionLog(status=pb.SessionLog.START))


def _value(name: str, value: float | str | bytes) -> Any:
    summary = import_module(f"{_PROTO}summary_pb2")
    if isinstance(value, str):
        shape = import_module(f"{_PROTO}tensor_shape_pb2").TensorShapeProto
        tensor = import_module(f"{_PROTO}tensor_pb2").TensorProto(
            dtype="DT_STRING", tensor_shape=shape(dim=[shape.Dim(size=1)]), string_val=[value.encode()]
        )
        plugin = summary.SummaryMetadata.PluginData(plugin_name="text")
        return summary.Summary.Value(tag=name, tensor=tensor, metadata=summary.SummaryMetadata(plugin_data=plugin))
    if isinstance(value, bytes):
        width, height = struct.unpack_from("<HH", value.ljust(10, b"\0"), 6)
        image = summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=value)
        return summary.Summary.Value(tag=name, image=image)
    return summary.Summary.Value(tag=name, simple_value=value)
