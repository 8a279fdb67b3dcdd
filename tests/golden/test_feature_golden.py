"""The same table three times: prepared data (numpy), training (torch), and the exported policy (ONNX)."""

import numpy as np
import pytest
from feature_cases import CASES

from lockstep.data.features import Features

FEATURES = Features({key: feature for key, (feature, _) in CASES.items()})
DEPTH = max(len(rows) for _, rows in CASES.values())
TOLERANCE = 1e-6


def table():
    """Raw rows [n, F], which are all of each feature's values in turn, and what they become [n, S]."""
    raw, wanted = [], []
    for i in range(DEPTH):
        rows = [CASES[key][1][i % len(CASES[key][1])] for key in FEATURES.ids]
        raw.append([value for value, _ in rows])
        wanted.append([x for _, normal in rows for x in (normal if isinstance(normal, list) else [normal])])
    return np.array(raw, np.float64), np.array(wanted, np.float64)


def close(found, wanted):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_columns_are_in_the_order_of_ids():
    assert FEATURES.ids == (*map(str, range(1, 12)), "20", "gear", "raw", "speed")
    assert FEATURES.names[9:16] == ("10=1", "10=5", "10=2", "11=16777216", "11=16777217", "11=9007199254740991", "20")
    assert FEATURES.size == len(FEATURES.names) == 19


def test_numpy():
    raw, wanted = table()
    close(FEATURES.normalize(raw), wanted)


def test_torch():
    torch = pytest.importorskip("torch")
    from lockstep.torch.scoring.preprocess import Preprocessor

    raw, wanted = table()
    close(Preprocessor(FEATURES)(torch.from_numpy(raw)).numpy(), wanted)
    present = ~np.isnan(raw)
    given = torch.from_numpy(np.where(present, raw, 12345.0)), torch.from_numpy(present)
    close(Preprocessor(FEATURES)(*given).numpy(), wanted)


def test_onnx(tmp_path):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    from lockstep.torch.deploy.onnx_model import run_onnx, to_onnx
    from lockstep.torch.deploy.program import trace
    from lockstep.torch.scoring.preprocess import Preprocessor

    class Seen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.state = Preprocessor(FEATURES)

        def forward(self, state_value, state_presence):
            return {"seen": self.state(state_value, state_presence)}

    raw, wanted = table()
    present = ~np.isnan(raw)
    inputs = {"state_value": np.where(present, raw, 12345.0), "state_presence": present}
    examples = {name: torch.from_numpy(value[:3]) for name, value in inputs.items()}
    program = trace(Seen(), examples, dict.fromkeys(inputs, "rows"), ("seen",))
    (tmp_path / "seen.onnx").write_bytes(to_onnx(program, (), "{}"))
    close(run_onnx(tmp_path / "seen.onnx", inputs)["seen"], wanted)
    one = {name: value[4:5] for name, value in inputs.items()}
    close(run_onnx(tmp_path / "seen.onnx", one)["seen"], wanted[4:5])
