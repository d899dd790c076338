"""Examples are read from files, images, folders and standard input; ambiguous data are
refused.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edge_agent.infer.inputs import fit_shape, list_inputs, parse_npy, read_examples
from export.onnx_session import Session, load
from federated.errors import DataError
from tests.export.conftest import make_bytes, make_text

GRAPHS = Path(__file__).parents[2] / "export"
PICTURE = np.array([[4, 1], [0, 0]], np.uint8)


@pytest.fixture
def toy() -> Session:
    return load(GRAPHS / "toy.onnx")


@pytest.fixture
def image() -> Session:
    return load(GRAPHS / "image.onnx")


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def npy(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def header(shape: str, kind: str) -> bytes:
    """Return a .npy file without data that claims this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(x: bytes, *, damaged: bool = False) -> bytes:
    """Return an .npz file with one array."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", x)
    data = file.getvalue()
    return data[:40] + bytes([data[40] ^ 0xFF]) + data[41:] if damaged else data


def test_numbers_beyond_the_dtype_are_refused() -> None:
    session = Session(make_bytes(dtype="FLOAT"), "floats")
    with pytest.raises(
        DataError, match=r"mine: expected numbers that float32 can hold, found up to 1e\+39"
    ):
        fit_shape(np.full((1, *session.inputs), 1e39), session, "mine")


def test_tokens_are_whole_numbers() -> None:
    session = Session(make_text("next"), "text")
    assert fit_shape(np.array([0.0, 1.0, 2.0]), session, "mine").tolist() == [[0, 1, 2]]
    with pytest.raises(DataError, match="mine: expected token ids"):
        fit_shape(np.array([0.5, 1, 2]), session, "mine")


def test_arrays_json_and_standard_input_give_the_same_examples(
    tmp_path: Path, toy: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.array([[1, 2], [3, 4]])
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", x=x, y=[0, 1])
    np.savez(tmp_path / "c.npz", anything=x.astype(np.float64))
    (tmp_path / "d.json").write_text(json.dumps(x.tolist()))
    (tmp_path / "e.jsonl").write_text("[1, 2]\n\n[3, 4]\n")
    for path in sorted(tmp_path.iterdir()):
        found = read_examples(path, toy)
        assert found.dtype == np.uint8
        assert found.tolist() == x.tolist()
    for said in (b"[[1, 2], [3.0, 4]]", b"[1, 2]\n[3, 4]", npy(x)):
        piped(monkeypatch, said)
        assert read_examples(None, toy).tolist() == x.tolist()


def test_an_empty_standard_input_is_named(monkeypatch: pytest.MonkeyPatch, toy: Session) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match=r"standard input: .*found nothing"):
        read_examples(None, toy)


def test_one_example_may_come_without_its_first_axis(toy: Session, image: Session) -> None:
    assert fit_shape(np.array([1, 2]), toy, "x").tolist() == [[1, 2]]
    for value in (PICTURE, PICTURE[None], PICTURE[None, None]):
        assert fit_shape(value, image, "x").tolist() == PICTURE[None, None].tolist()
    assert fit_shape(np.stack([PICTURE] * 3), image, "x").shape == (3, 1, 2, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([[1, 2, 3]]), r"expected raw examples of shape \[n, 2\], found \[1, 3\]"),
        (np.array(3), r"found \[\]"),
        (np.array([[0.5, 1.0]]), "expected whole numbers from 0 to 255 .*found 0.5 to 1"),
        (np.array([[0, 256]]), "found 0 to 256"),
        (np.array([[-1, 2]]), "found -1 to 2"),
        (np.array([[1.0, np.nan]]), "found NaN or infinity"),
        (np.array([["1", "2"]]), "expected numbers, found <U1"),
        (np.array([[{}, {}]], object), "expected numbers, found object"),
    ],
)
def test_misfitting_examples_are_refused(toy: Session, value: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=f"mine: .*{message}"):
        fit_shape(value, toy, "mine")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b"\x93NUMPY\x01"),
        ("b.npz", b"PK\x03\x04 no zip"),
        ("c.json", b"{"),
        ("d.json", b"[[1, 2], [3]]"),
        ("e.json", b"\xff"),
        ("f.csv", b"1,2"),
        ("g.json", b"[" * 100_000),
        ("h.npy", b""),
        ("i.jsonl", b"[1, 2]\n[3"),
        ("j.png", b"\x89PNG\r\n\x1a\n"),
        ("k.npy", header("(1000000000000,)", "<f8")),
        ("l.npz", archive(header("(1000000000000000,)", "<f8"))),
        ("m.npz", archive(npy(np.zeros((2, 2))), damaged=True)),
        ("n.json", json.dumps(["a" * 500_000, *[""] * 160_000]).encode()),
    ],
)
def test_unreadable_file_is_named(
    tmp_path: Path, toy: Session, image: Session, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_examples(tmp_path / name, image if name == "j.png" else toy)


def test_missing_files_ambiguous_archives_and_pickles_are_refused(
    tmp_path: Path, toy: Session
) -> None:
    with pytest.raises(DataError, match=r"none\.npy"):
        read_examples(tmp_path / "none.npy", toy)
    np.savez(tmp_path / "two.npz", a=[1], b=[2])
    with pytest.raises(DataError, match="expected an array 'x', or one array only, found a, b"):
        read_examples(tmp_path / "two.npz", toy)
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read_examples(tmp_path / "pickle.npy", toy)


def test_images_are_converted_and_only_resized_on_request(tmp_path: Path, image: Session) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(PICTURE).save(tmp_path / "a.png")
    assert read_examples(tmp_path / "a.png", image).tolist() == PICTURE[None, None].tolist()
    pillow.new("RGB", (2, 2), (9, 9, 9)).save(tmp_path / "b.png")
    assert read_examples(tmp_path / "b.png", image).tolist() == [[[[9, 9], [9, 9]]]]
    coloured = Session(make_bytes((3, 2, 2)), "coloured")
    assert read_examples(tmp_path / "a.png", coloured).tolist() == [[PICTURE.tolist()] * 3]
    pillow.new("L", (4, 2)).save(tmp_path / "wide.png")
    with pytest.raises(
        DataError, match=r"wide\.png: expected an image of 2x2, found 4x2; --resize scales it"
    ):
        read_examples(tmp_path / "wide.png", image)
    assert read_examples(tmp_path / "wide.png", image, resize=True).shape == (1, 1, 2, 2)


def test_an_image_of_more_than_eight_bits_or_for_a_network_of_numbers_is_refused(
    tmp_path: Path, toy: Session, image: Session
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.full((2, 2), 60_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(
        DataError,
        match=r"deep\.png: expected an image of 8 bits in grey or colour, found one of mode I;16",
    ):
        read_examples(tmp_path / "deep.png", image)
    with pytest.raises(DataError, match=r"deep\.png: found an image.*uint8 \[2\]"):
        read_examples(tmp_path / "deep.png", toy)


def test_folder_lists_readable_files_by_name(tmp_path: Path) -> None:
    for name in ("b.npy", "a.JSON", "notes.txt", ".hidden.npy", "inner/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_inputs([tmp_path]) == [
        tmp_path / "a.JSON",
        tmp_path / "b.npy",
        tmp_path / "inner" / "c.png",
    ]
    assert list_inputs([]) == [None]
    assert list_inputs([tmp_path / "b.npy"]) == [tmp_path / "b.npy"]
    with pytest.raises(DataError, match=r"x\.npy: no such file"):
        list_inputs([tmp_path / "x.npy"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected files of .* in the folder, found none"):
        list_inputs([tmp_path / "empty"])


def test_npy_must_match_its_header() -> None:
    x = np.arange(6).reshape(2, 3)
    assert parse_npy(npy(x), "mine").tolist() == x.tolist()
    assert parse_npy(npy(np.asfortranarray(x)), "mine").tolist() == x.tolist()
    with pytest.raises(DataError, match=r"mine: expected 48 bytes .*\[2, 3\], found 40"):
        parse_npy(npy(x)[:-8], "mine")
    vast = npy(x).replace(b"(2, 3), }", b"(2, 3000000000000), }")
    with pytest.raises(DataError, match="mine: expected"):
        parse_npy(vast, "mine")
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"mine: expected .* found pickled objects"):
        parse_npy(pickled.getvalue(), "mine")
    for shape, kind in (
        ("(-1, -1)", "<f8"),
        (f"({'1, ' * 65})", "<f8"),
        ("(True,)", "<f8"),
        ("(0,)", "<U0"),
        ("(0, 2**70)", "<f8"),
    ):
        with pytest.raises(DataError, match=r"mine: expected a \.npy file"):
            parse_npy(
                header(shape.replace("2**70", str(2**70)), kind)
                + (b"" if "0" in shape else bytes(8)),
                "mine",
            )
    for broken in (b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x10\x00not a header ..", npy(x)[:40]):
        with pytest.raises(DataError, match=r"mine: expected a \.npy file"):
            parse_npy(broken, "mine")
