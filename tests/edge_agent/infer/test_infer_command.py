"""The command answers with a file, a folder or a broker's release, without torch."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.infer.infer_command import infer
from edge_agent.infer.infer_options import InferRequest
from edge_agent.releases.release_options import select_submodel
from federated.errors import DataError, ExportError, Unknown, UsageError
from federated.runtime.atomic_files import sha256
from tests.support.handmade_releases import GRAPH, toy
from tests.support.handmade_variants import NAME, several

PICTURE = GRAPH.parent / "image.onnx"
X = [[2, 1], [0, 0]]


def run_infer(form: str = "text", **changes: Any) -> str:
    """Return the command's output, by default with toy.onnx."""
    source = {} if {"model", "broker"} & changes.keys() else {"model": GRAPH}
    return infer(InferRequest(name="pi", **source, **changes), form, lambda line: None)


@pytest.fixture
def x(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_every_example_of_every_file_is_answered(tmp_path: Path, x: Path) -> None:
    (tmp_path / "b.json").write_text("[9, 0]")
    inputs = (x, tmp_path / "b.json")
    assert run_infer(inputs=inputs).splitlines() == [
        f"{x}: 0 (95.3%)",
        f"{x}: 0 (50.0%)",
        f"{inputs[1]}: 0 (100.0%)",
    ]
    told = json.loads(run_infer("json", inputs=inputs))
    assert (told["run"], told["round"], told["submodel"], told["model"]) == (
        "spring",
        7,
        "w1-d1",
        str(GRAPH),
    )
    assert [found["input"] for found in told["answers"]] == [str(x), str(x), str(inputs[1])]
    assert told["answers"][1] == {"input": str(x), "label": 0, "confidence": 0.5}


def test_release_answers_with_fastest_passing_way(tmp_path: Path, x: Path) -> None:
    folder = several(tmp_path / "release", off={"int8-u8s8": 9.0}, classes=("cat", "dog"))
    told = json.loads(run_infer("json", model=folder, inputs=(x,), explain=True, threads=1))
    assert (told["variant"], told["provider"], told["threads"]) == (
        "fp32",
        "CPUExecutionProvider",
        1,
    )
    assert [one["name"] for one in told["answers"]] == ["cat", "cat"]
    assert [trial["kind"] for trial in told["tried"]] == ["fp32", "int8-u8s8"]
    assert "deviates from the exporter's machine" in told["tried"][1]["reason"]


def test_explain_prints_trials(tmp_path: Path, x: Path) -> None:
    lines: list[str] = []
    folder = several(tmp_path / "release")
    out = infer(
        InferRequest("pi", model=folder, explain=True, threads=1, inputs=(x,)), "text", lines.append
    )
    assert out.count("\n") == 1
    assert lines[0].splitlines()[0].split() == [
        "variant",
        "provider",
        "threads",
        "p50",
        "ms",
        "p90",
        "ms",
        "accuracy",
    ]
    assert "chosen" in lines[0]
    assert (
        infer(InferRequest("pi", model=folder, explain=True, threads=1), "text", lines.append) == ""
    )


def test_submodel_of_folder_is_named_or_the_only_one(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    assert select_submodel(several(tmp_path / "one"), None) == NAME
    both = toy(tmp_path / "two", submodels=("w0.5-d1", "w1-d1"), untrained=("w0.5-d1",))
    with pytest.raises(UsageError, match=r"two has w0\.5-d1 \(not trained\), w1-d1.*--submodel"):
        select_submodel(both, None)
    assert select_submodel(both, "w1-d1") == "w1-d1"
    (both / "w0.5-d1.onnx").unlink()
    assert select_submodel(both, None) == "w1-d1", (
        "a device has the files of its own submodel alone"
    )
    with pytest.raises(Unknown, match="unknown submodel 'w9'"):
        run_infer(model=both, submodel="w9", inputs=())


def test_own_data_test_a_release(tmp_path: Path, x: Path) -> None:
    np.savez(
        tmp_path / "mine.npz",
        x=np.array([[4, 1], [0, 3], [7, 0], [0, 9]], np.uint8),
        y=[0, 0, 1, 1],
        x_test=np.array(X, np.uint8),
        y_test=[0, 1],
    )
    told = json.loads(
        run_infer(
            "json",
            model=several(tmp_path / "r"),
            data=str(tmp_path / "mine.npz"),
            inputs=(x,),
            explain=True,
            threads=1,
        )
    )
    assert [trial["accuracy"] for trial in told["tried"]] == [0.5, 0.5], "the graph says 0 of both"


def test_the_digest_of_a_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = sha256(GRAPH)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[0, 0]")))
    assert run_infer(sha256=digest) == "-: 0 (50.0%)"
    copy = Path(shutil.copy(PICTURE, tmp_path / "other.onnx"))
    with pytest.raises(ExportError, match=f"expected sha256 {digest}"):
        run_infer(sha256=digest, model=copy)


def test_damaged_release_is_refused(tmp_path: Path, x: Path) -> None:
    folder = several(tmp_path / "release")
    (folder / "check.tensors").write_bytes(b"other")
    with pytest.raises(ExportError, match=r"check\.tensors: expected sha256"):
        run_infer(model=folder, inputs=(x,))
    with pytest.raises(ExportError, match=r"found no manifest\.json"):
        run_infer(model=tmp_path, inputs=(x,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "--model"),
        ({"broker": "127.0.0.1", "model": GRAPH}, "--model"),
        ({"broker": "127.0.0.1", "sha256": "0" * 64}, "--sha256 requires --model"),
        ({"model": GRAPH.parent, "sha256": "0" * 64}, "--sha256 requires --model FILE"),
        ({"sha256": "0x12"}, "--sha256: expected 64 hexadecimal digits, found '0x12'"),
        ({"mqtt": True}, "--mqtt requires --broker"),
        ({"serve": "8080", "inputs": (GRAPH,)}, "--serve and --mqtt cannot"),
        ({"token_file": GRAPH}, "--token-file requires --serve"),
        ({"shard": "0/4"}, "require --data"),
        ({"serve": "nonsense"}, "expected HOST:PORT"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_infer(**changes)


def test_missing_inputs_are_refused_before_the_network_is_tested(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no graph")
    with pytest.raises(DataError, match=r"absent\.npy: no such file"):
        run_infer(model=damaged, inputs=(tmp_path / "absent.npy",))


def test_inputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", [[1, 2, 3]])
    with pytest.raises(
        DataError, match=r"wide\.npy: expected raw examples of shape \[n, 2\], found \[1, 3\]"
    ):
        run_infer(inputs=(tmp_path / "wide.npy",))


def test_a_device_without_torch_answers() -> None:
    code = (
        "import sys, pathlib; sys.modules['torch'] = sys.modules['onnx'] = None\nfrom "
        "edge_agent.infer.infer_command import infer\n"
        "from edge_agent.infer.infer_options import InferRequest\n"
        f"print(infer(InferRequest('pi', model=pathlib.Path({str(PICTURE)!r})), 'text', print))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="[[4, 1], [0, 0]]",
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"-: 0 ({1 / (1 + math.exp(-5)):.1%})\n"
