"""Tensors as one blob: they survive encoding, decoding copies nothing, and invalid blobs are
rejected.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from federated.errors import Malformed, Refused
from federated.wire.tensors import check, decode, encode

DTYPES = ("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


def blob(
    entries: list[Any],
    data: bytes,
    meta: Any = None,
    magic: bytes = b"ESPL",
    version: int = 1,
    reserved: int = 0,
) -> bytes:
    """Return a blob whose fields can each be made invalid."""
    header = msgpack.packb({"meta": {} if meta is None else meta, "tensors": entries})
    prefix = struct.pack("<4sHHQ", magic, version, reserved, len(header))
    return prefix + header + bytes(-(len(prefix) + len(header)) % 64) + data


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), ARRAYS, max_size=5))
def test_any_tensors_are_decoded_bit_for_bit(tensors: dict[str, np.ndarray]) -> None:
    meta, found = decode(bytes(encode({"round": 3}, tensors)))
    assert meta == {"round": 3}
    assert list(found) == list(tensors)
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_the_format_is_the_documented_one() -> None:
    """A float32 pair and a byte: the second tensor starts at 64, and the blob ends with its last
    value.
    """
    expected = blob(
        [["w", "float32", [2], 0], ["b", "uint8", [1], 64]],
        struct.pack("<2f", 1.0, -2.0) + bytes(56) + b"\x07",
    )
    assert (
        bytes(encode({}, {"w": np.array([1.0, -2.0], np.float32), "b": np.array([7], np.uint8)}))
        == expected
    )


def test_decoding_copies_nothing_and_its_arrays_are_read_only_and_aligned() -> None:
    buffer = np.zeros(1024, np.uint8)
    start = -buffer.ctypes.data % 64
    view = memoryview(buffer)[start:]
    raw = encode({}, {"a": np.ones(3, np.float32), "b": np.ones(5, np.int64)})
    view[: len(raw)] = raw
    _, found = decode(view[: len(raw)])
    for array in found.values():
        assert np.shares_memory(array, buffer)
        assert array.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    assert found["a"][0] == 1
    buffer[start + len(raw) - 40] = 9
    assert found["b"][0] == 9


def test_a_mapped_file_decodes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "update"
    path.write_bytes(encode({}, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    _, found = decode(memoryview(np.memmap(path, np.uint8, mode="r")))
    np.testing.assert_array_equal(found["w"], [[0, 1, 2], [3, 4, 5]])


def test_a_buffer_is_reused_and_grows_if_needed() -> None:
    buffer = bytearray(b"\xff" * 4096)
    small = bytes(encode({}, {"w": np.ones(3, np.float32)}, buffer))
    assert len(buffer) == 4096
    assert small == bytes(encode({}, {"w": np.ones(3, np.float32)}))
    large = bytes(encode({}, {"w": np.ones(3000, np.float32)}, buffer))
    assert len(buffer) >= 12000
    assert large == bytes(encode({}, {"w": np.ones(3000, np.float32)}))


def test_transposed_and_big_endian_arrays_keep_their_values() -> None:
    tensors = {"t": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array([1, 256], ">i4")}
    _, found = decode(bytes(encode({}, tensors)))
    np.testing.assert_array_equal(found["t"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["b"], [1, 256])


def test_torch_tensors_are_encoded() -> None:
    torch = pytest.importorskip("torch")
    _, found = decode(
        bytes(
            encode({}, {"w": torch.nn.Parameter(torch.tensor([[1.0, 2.0]])), "n": torch.tensor(3)})
        )
    )
    np.testing.assert_array_equal(found["w"], [[1, 2]])
    assert found["n"].shape == ()
    assert found["n"] == 3


@pytest.mark.parametrize(
    "array", [np.zeros(2, np.complex64), np.array(["a"]), np.zeros((1,) * 9, np.float32)]
)
def test_an_unsupported_dtype_is_an_error_of_the_sender(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="tensor w"):
        encode({}, {"w": array})


TWO = ["w", "float32", [2], 0]
FAULTS = {
    "magic": blob([TWO], bytes(8), magic=b"ESPX"),
    "version": blob([TWO], bytes(8), version=2),
    "reserved": blob([TWO], bytes(8), reserved=1),
    "header beyond the end": struct.pack("<4sHHQ", b"ESPL", 1, 0, 1 << 40) + bytes(100),
    "header no msgpack": struct.pack("<4sHHQ", b"ESPL", 1, 0, 4) + b"\xc1\xc1\xc1\xc1" + bytes(44),
    "meta no map": blob([TWO], bytes(8), meta=[1]),
    "dtype": blob([["w", "object", [1], 0]], bytes(8)),
    "numpy's other names of dtypes": blob([["w", "f4", [2], 0]], bytes(8)),
    "negative axis": blob([["w", "float32", [-2], 0]], bytes(8)),
    "product that wraps": blob([["w", "float32", [1 << 39, 1 << 39], 0]], bytes(8)),
    "an empty tensor of vast sides": blob([["w", "float32", [0, 1 << 39, 1 << 39], 0]], b""),
    "axis of true": blob([["w", "float32", [True], 0]], bytes(4)),
    "nine axes": blob([["w", "float32", [1] * 9, 0]], bytes(4)),
    "offset outside": blob([["w", "float32", [2], 64]], bytes(8)),
    "offset unaligned": blob([TWO, ["v", "float32", [2], 32]], bytes(72)),
    "overlap": blob([TWO, ["v", "float32", [2], 0]], bytes(8)),
    "gap": blob([TWO, ["v", "float32", [2], 128]], bytes(136)),
    "twice the name": blob([TWO, ["w", "float32", [2], 64]], bytes(72)),
    "bytes missing": blob([TWO], bytes(7)),
    "bytes left over": blob([TWO], bytes(9)),
    "bool of 2": blob([["w", "bool", [2], 0]], b"\x01\x02"),
    "entry of three": blob([["w", "float32", [2]]], bytes(8)),
    "name no text": blob([[1, "float32", [2], 0]], bytes(8)),
    "empty": b"",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_blob_is_malformed(fault: str) -> None:
    with pytest.raises(Malformed, match="tensor"):
        decode(FAULTS[fault])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_blob_is_decoded_or_malformed(data: st.DataObject) -> None:
    raw = bytearray(
        encode({"a": 1}, {"w": np.ones((2, 3), np.float32), "b": np.array([True, False])})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for candidate in (bytes(raw), bytes(raw[:cut])):
        with contextlib.suppress(Malformed):
            decode(candidate)


def test_false_lengths_in_a_header_take_no_memory() -> None:
    # lists within lists, of 65,536 each it says: 470 MB of places
    claims = b"\xdd\x00\x01\x00\x00" * 900 + bytes(70_000)
    header = b"\x82\xa7tensors\x90\xa4meta\x81\xa1a" + claims
    tracemalloc.start()
    with pytest.raises(Malformed, match="truncated"):
        decode(struct.pack("<4sHHQ", b"ESPL", 1, 0, len(header)) + header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(header)


def test_check_names_the_tensor_and_the_problem() -> None:
    good = {"w": np.zeros((2, 2), np.float32)}
    check(good, {"w": (2, 2)})
    check({"n": np.zeros(0, np.float32)}, {"n": (0,)})
    for tensors, expected, message in (
        ({}, {"w": (2, 2)}, "missing tensors: w"),
        ({**good, "v": good["w"]}, {"w": (2, 2)}, "unexpected tensors: v"),
        (good, {"w": (4,)}, r"tensor w: expected shape \(4,\), found \(2, 2\)"),
        (
            {"w": np.zeros((2, 2), np.float64)},
            {"w": (2, 2)},
            "tensor w: expected float32, found float64",
        ),
        (
            {"w": np.array([[1, np.nan], [0, 0]], np.float32)},
            {"w": (2, 2)},
            "tensor w: expected finite values, found 1",
        ),
        (
            {"w": np.array([[1, -np.inf], [0, np.inf]], np.float32)},
            {"w": (2, 2)},
            "tensor w: expected finite values, found 2",
        ),
    ):
        with pytest.raises(Refused, match=message):
            check(tensors, expected)
