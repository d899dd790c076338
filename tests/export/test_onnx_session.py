"""A device runs only graphs with the right digest that load and were exported by this project."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.onnx_session import BATCH, METADATA, load
from federated.errors import DataError, ExportError
from federated.runtime.atomic_files import sha256
from tests.export.conftest import GIVEN, make_bytes, make_text

X = np.array([[1, 2], [5, 3]], np.uint8)
Make = Callable[..., Path]


@pytest.mark.parametrize(("name", "inputs"), [("toy.onnx", (2,)), ("image.onnx", (1, 2, 2))])
def test_stored_graphs_match_their_generator(
    made: Callable[..., bytes], name: str, inputs: tuple[int, ...]
) -> None:
    assert (Path(__file__).parent / name).read_bytes() == made(inputs)


def test_a_session_predicts_logits_of_raw_data(make_graph: Make) -> None:
    session = load(make_graph())
    assert session.predict(X).tolist() == [[1.0, -2.0], [5.0, -3.0]]
    assert (session.inputs, session.dtype, session.objective, session.outputs) == (
        (2,),
        np.uint8,
        "class",
        2,
    )
    assert session.metadata["run"] == "spring"
    assert set(session.metadata) == set(METADATA)


def test_more_than_one_batch_and_none_come_back_in_order(make_graph: Make) -> None:
    session = load(make_graph())
    x = (np.arange(2 * (2 * BATCH + 3)) % 251).astype(np.uint8).reshape(-1, 2)
    assert np.array_equal(session.predict(x), x * np.array([1.0, -1.0], np.float32))
    assert session.predict(x[:0]).shape == (0, 2)


def test_a_text_gives_logits_at_each_place_and_parts_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.onnx").write_bytes(make_text("next"))
    session = load(tmp_path / "text.onnx")
    assert (session.inputs, session.dtype, session.objective, session.outputs) == (
        (3,),
        np.int64,
        "next",
        3,
    )
    x = np.array([[0, 1, 2], [3, 0, 0]])
    assert session.predict(x).tolist() == [
        [[0, 0, 2], [2, 0, 0], [0, 2, 0]],
        [[0, 0, 0], [0, 2, 2], [1, 0, 0]],
    ]
    assert session.predict(x[:0]).shape == (0, 3, 3)
    monkeypatch.setattr("export.onnx_session.MAX_VALUES", 10)
    assert [part.shape for part in session.batches(x)] == [(1, 3, 3), (1, 3, 3)]
    with pytest.raises(
        DataError, match="expected tokens 0 to 2, or 3 for a hidden one, found 0 to 4"
    ):
        session.predict(x + (x == 3))


@pytest.mark.parametrize("x", [X[:, :1], X.astype(np.float32), X[None], np.uint8(3), X[0]])
def test_data_of_another_shape_or_type_is_refused(make_graph: Make, x: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"expected uint8 of shape \[n, 2\], found"):
        load(make_graph()).predict(x)


def test_only_the_file_with_the_digest_is_loaded(make_graph: Make) -> None:
    path = make_graph()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256(path) == digest
    assert load(path, digest.upper()).outputs == 2
    with pytest.raises(ExportError, match=f"expected sha256 {'0' * 64}, found {digest}"):
        load(path, "0" * 64)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b"GIF89a" + b,
        lambda b: b.replace(b"MatMul", b"MatMux"),
    ],
)
def test_a_corrupt_file_is_refused(make_graph: Make, damage: Callable[[bytes], bytes]) -> None:
    path = make_graph()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ExportError, match=r"toy\.onnx: (not a valid|expected)"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"given": {}}, "found a graph without objective, outputs, preprocessing, round"),
        (
            {"given": {key: "" for key in METADATA if key != "weights"}},
            "a graph without weights in",
        ),
        ({"given": {**GIVEN, "objective": "sing"}}, "found the objective 'sing' in its properties"),
        (
            {"input": "pixels"},
            "expected one input 'input' of uint8 or float32.*'pixels' tensor\\(uint8\\)",
        ),
        ({"dtype": "DOUBLE"}, r"found 'input' tensor\(double\)"),
        ({"batch": 2}, r"\[2, 2\]"),
        ({"output": "values"}, "expected one output 'logits' .*'values'"),
        ({"given": {**GIVEN, "objective": "value"}}, "expected one output 'values' .*'logits'"),
        (
            {"given": {**GIVEN, "objective": "next"}},
            r"expected one input 'input' of int64 .*tensor\(uint8\)",
        ),
        (
            {"given": {**GIVEN, "objective": "next"}, "dtype": "INT64"},
            r"float32 \['batch', 'outputs', 2\]",
        ),
    ],
)
def test_a_foreign_graph_is_refused(
    make_graph: Make, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        load(make_graph(**changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: setattr(m.opset_import[0], "version", 99),
            r"expected opset \d+ of ai.onnx at most, which onnxruntime [\d.]+ knows, found 99",
        ),
        (
            lambda m: setattr(m, "ir_version", 99),
            r"expected IR version \d+ at most, which onnxruntime [\d.]+ knows, found 99",
        ),
        (
            lambda m: setattr(m.graph.node[1], "op_type", "Frob"),
            r"expected operators that onnxruntime [\d.]+ knows, found Frob of opset 20",
        ),
        (
            lambda m: (setattr(m.graph.node[1], "domain", "com.foo"), add(m, "com.foo")),
            r"expected operators .* found com\.foo:Flatten",
        ),
        (
            lambda m: m.graph.node[2].input.__setitem__(1, "gone"),
            r"not a valid ONNX file: .*gone",
        ),
    ],
)
def test_unsupported_graph_names_its_requirement(
    change: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(make_bytes())
    change(model)
    (tmp_path / "foreign.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=rf"foreign\.onnx: {message}") as error:
        load(tmp_path / "foreign.onnx")
    assert "onnxruntime_src" not in str(error.value)


def add(model: Any, domain: str) -> None:
    model.opset_import.append(type(model.opset_import[0])(domain=domain, version=3))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"none\.onnx: no such file"):
        load(tmp_path / "none.onnx")


def test_a_graph_in_a_given_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "w1.onnx").touch()
    with pytest.raises(ExportError, match=r"found a folder.*w1\.onnx"):
        load(tmp_path)


def test_a_device_without_torch_and_onnx_predicts(make_graph: Make) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None\n"
        "import numpy, pathlib; from export import onnx_session, release_reader\n"
        f"print(onnx_session.load(pathlib.Path({str(make_graph())!r})).predict("
        "numpy.array([[4, 1]], numpy.uint8)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[[4.0, -1.0]]\n"


def test_graph_with_external_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string((Path(__file__).parent / "toy.onnx").read_bytes())
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.ones(4, np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    for where in ("secret.bin", str(secret), f"../{tmp_path.name}/secret.bin"):
        tensor = onnx.TensorProto(
            name="stolen",
            data_type=onnx.TensorProto.FLOAT,
            dims=[2, 2],
            data_location=onnx.TensorProto.EXTERNAL,
        )
        tensor.external_data.add(key="location", value=where)
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.initializer.append(tensor)
        changed.graph.node[-1].output[0] = "inner"
        changed.graph.node.append(
            onnx.helper.make_node("MatMul", ["inner", "stolen"], [changed.graph.output[0].name])
        )
        (tmp_path / "one.onnx").write_bytes(changed.SerializeToString())
        with pytest.raises(
            ExportError, match=rf"one\.onnx: expected a graph with all weights inside.*{where}"
        ):
            load(tmp_path / "one.onnx")
