"""Codecs: decoded values, encoded sizes and rejected values.

TRY_CODEC=module:attribute tries a codec of your own instead of the built-in ones.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from federated.errors import Malformed, MissingExtra, Refused, Unknown
from federated.task import Update
from federated.wire import tensors
from federated.wire.codecs.catalogue import CODECS, codec_names, find_codec, find_loaded_codec
from federated.wire.codecs.codec import Codec, Tensors, decode_update, encode_update
from federated.wire.codecs.top10 import TOP10
from federated.wire.codecs.zstd import load
from models.named_network import network
from models.submodel_building import full
from tests.support.member_names import list_tried
from tests.support.plugins import install

TRIED = {name: find_codec(name) for name in list_tried("codec", codec_names())}
COMPRESSED = [name for name, codec in TRIED.items() if codec.compression]
LIMIT = 1 << 20
SUBMODEL = full(network("mlp", (4,), 3))
ORDINARY = st.floats(-6e4, 6e4, width=32, allow_subnormal=False)


def encode(made: Update, codec: Codec, received: Tensors) -> bytes:
    return b"".join(encode_update(made, codec, received))


def update(**values: object) -> Update:
    made = {name: np.asarray(value, np.float32) for name, value in values.items()}
    return Update("r", 1, 1, "a0", "train", SUBMODEL, "r0", 5, 1, made, {"loss": 0.5})


@pytest.mark.parametrize("name", TRIED)
@settings(max_examples=50, deadline=None)
@given(value=arrays(np.float32, array_shapes(max_dims=3, max_side=5), elements=ORDINARY))
def test_every_codec_keeps_names_shapes_order_and_dtype(name: str, value: np.ndarray) -> None:
    sent = update(b=value, a=value.T)
    found = decode_update(encode(sent, TRIED[name], {}), TRIED[name], LIMIT, {})
    assert list(found.tensors) == ["b", "a"]
    assert found.tensors["a"].shape == value.T.shape
    assert {array.dtype for array in found.tensors.values()} == {np.dtype(np.float32)}
    assert replace(found, tensors={}) == replace(sent, tensors={})


@pytest.mark.parametrize("name", TRIED)
def test_every_codec_changes_weights_by_less_than_a_tenth(name: str) -> None:
    rng = np.random.default_rng(0)
    received = {"w": rng.normal(0, 0.05, (64, 64)).astype(np.float32)}
    value = received["w"] + rng.normal(0, 0.005, (64, 64)).astype(np.float32)
    sent = encode(update(w=value), TRIED[name], received)
    found = decode_update(sent, TRIED[name], LIMIT, received).tensors["w"]
    assert np.linalg.norm(found - value) < 0.1 * np.linalg.norm(value)


@pytest.mark.parametrize("name", TRIED)
def test_every_codec_states_its_encoded_size(name: str) -> None:
    """A tensor of 4096 values takes exactly the stated bytes beyond the header, until it is
    compressed.
    """
    plain = replace(TRIED[name], compression=None)
    empty = len(encode(update(w=np.zeros(0)), plain, {}))
    full_size = len(encode(update(w=np.zeros(4096)), plain, {}))
    assert abs(full_size - empty - TRIED[name].size(4096)) <= tensors.ALIGNMENT
    assert TRIED[name].size(4096) <= 4 * 4096
    assert ":" in name or TRIED[name].name == name


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_the_error_of_a_codec_is_relative_to_the_change_of_the_weights(name: str) -> None:
    rng = np.random.default_rng(0)
    received = {"w": rng.normal(0, 1, (64, 64)).astype(np.float32)}
    value = received["w"] + rng.normal(0, 1e-3, (64, 64)).astype(np.float32)
    sent = encode(update(w=value), CODECS[name], received)
    found = decode_update(sent, CODECS[name], LIMIT, received).tensors["w"]
    assert np.linalg.norm(found - value) < 0.1 * np.linalg.norm(value - received["w"])


def test_only_tensors_that_were_received_are_sent_as_changes() -> None:
    """1.5 - 1 and 2 - 0: `v` was not received, and `u` was received with another shape."""
    received = {"w": np.float32([1.0]), "u": np.float32([1.0, 1.0])}
    sent = encode(update(w=[1.5], v=[2.0], u=[3.0]), CODECS["fp16"], received)
    values = tensors.decode(sent)[1]
    assert [values[name].tolist() for name in "wvu"] == [[0.5], [2.0], [3.0]]
    found = decode_update(sent, CODECS["fp16"], LIMIT, received).tensors
    assert [found[name].tolist() for name in "wvu"] == [[1.5], [2.0], [3.0]]


def test_what_a_device_sends_of_a_variate_is_a_change_already() -> None:
    """SCAFFOLD sends the change of its variate under the name of the received one. Nine tenths are
    not sent, and must be 0 instead of the received variate.
    """
    received = {"c/w": np.full(1010, 5.0, np.float32)}
    change = {"c/w": np.linspace(0.5, 1.0, 1010, dtype=np.float32)}
    found = decode_update(encode(update(**change), TOP10, received), TOP10, LIMIT, received)
    assert np.count_nonzero(found.tensors["c/w"]) == 101
    assert found.tensors["c/w"][-1] == 1.0


def test_raw_is_the_format_of_tensors_byte_for_byte() -> None:
    sent = update(w=[[1.0, 2.0]])
    header, values = tensors.decode(encode(sent, CODECS["raw"], {}))
    assert encode(sent, CODECS["raw"], {}) == bytes(tensors.encode(header, values))
    assert values["w"].tolist() == [[1.0, 2.0]]


@settings(max_examples=200, deadline=None)
@given(value=arrays(np.float32, 8, elements=st.floats(-65504, 65504, width=32)))
def test_half_precision_loses_as_much_as_it_states(value: np.ndarray) -> None:
    found = CODECS["fp16"].decode(CODECS["fp16"].encode({"w": value}))["w"]
    wide = value.astype(np.float64)
    assert (np.abs(found - wide) <= np.maximum(2.0**-11 * np.abs(wide), 2.0**-25)).all()


def test_half_precision_by_hand() -> None:
    """1 + 2^-11 lies between two half-precision neighbours, and the even one is 1; 1e-9 rounds to
    0.
    """
    found = CODECS["fp16"].decode(CODECS["fp16"].encode(update(w=[1 + 2**-11, 0.5, 1e-9]).tensors))
    assert found["w"].tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("value", [65520.0, -1e30, np.inf, np.nan])
def test_half_precision_rejects_values_beyond_its_range(value: float) -> None:
    with pytest.raises(Refused, match=r"tensor w: expected changes up to 65504.*'raw'"):
        encode(update(w=[1.0, value]), CODECS["fp16"], {})


def test_half_precision_rejects_other_dtypes() -> None:
    blob = encode(update(w=[1.0]), CODECS["raw"], {})
    with pytest.raises(Malformed, match="tensor w: expected float16, found float32"):
        decode_update(blob, CODECS["fp16"], LIMIT, {})


@settings(max_examples=200, deadline=None)
@given(value=arrays(np.float32, (2, 20), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_eight_bits_lose_less_than_a_step_of_the_row(value: np.ndarray) -> None:
    found = CODECS["int8"].decode(CODECS["int8"].encode({"w": value}))["w"].astype(np.float64)
    step = np.abs(value).max(axis=1, keepdims=True) / 127
    assert (np.abs(found - value) <= step * (1 + 1e-5) + 1e-40).all()


def test_eight_bits_are_right_on_average_and_the_same_each_time() -> None:
    """0.3 of 1 lies between the levels 38 and 39 of 127; the mean of 4095 roundings has a standard
    error of 6e-5.
    """
    value = np.full((1, 4096), 0.3, np.float32)
    value[0, 0] = 1.0
    first, again = (CODECS["int8"].encode({"w": value})["w"] for _ in range(2))
    assert set(first[0, 1:].tolist()) == {38, 39}
    assert abs(first[0, 1:].mean() / 127 - 0.3) < 3e-4
    assert (first == again).all()


def test_the_largest_tenth_of_the_changes_of_a_large_tensor_is_sent() -> None:
    """Of 1010 changes, the 101 largest, by absolute value; of a tensor of 3, all."""
    change = np.linspace(-1, 0.5, 1010, dtype=np.float32).reshape(10, 101)
    found = TOP10.decode(TOP10.encode({"w": change, "b": np.float32([0.5, 0.25, 0.125])}))
    assert list(found) == ["w", "b"]
    assert np.count_nonzero(found["w"]) == 101
    assert (found["w"][0] == change[0].astype(np.float16)).all()
    assert found["b"].tolist() == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("false", "why"),
    [
        ({"w": np.ones(3, np.bool_)}, r"/values: expected 3 float16.*found \[0\]"),
        (
            {"/values": np.zeros(2, np.float32), "w": np.ones(2, np.bool_)},
            "/values: expected 2 float16.*float32",
        ),
        ({"/values": np.zeros(1, np.float16), "w": np.ones(1, np.uint8)}, "expected bool, found"),
    ],
)
def test_masks_that_do_not_match_their_values_are_rejected(
    false: dict[str, np.ndarray], why: str
) -> None:
    with pytest.raises(Malformed, match=why):
        TOP10.decode(false)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_eight_bits_reject_values_that_are_not_finite(value: float) -> None:
    with pytest.raises(Refused, match="tensor w: expected finite values"):
        encode(update(w=[1.0, value]), CODECS["int8"], {})


@pytest.mark.parametrize(
    ("false", "why"),
    [
        ({"w": np.zeros((2, 20), np.int8)}, r"/scales: expected 2 float32.*found \[0\]"),
        (
            {"/scales": np.ones(3, np.float32), "w": np.zeros((2, 20), np.int8)},
            r"expected 2 float32.*found \[3\]",
        ),
        (
            {"/scales": np.ones(2), "w": np.zeros((2, 20), np.int8)},
            r"expected 2 float32.*float64",
        ),
        (
            {"/scales": np.ones(2, np.float32), "w": np.zeros((2, 20), np.float32)},
            "tensor w: expected int8, found float32",
        ),
    ],
)
def test_eight_bits_reject_what_they_cannot_decode(false: dict[str, np.ndarray], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        CODECS["int8"].decode(false)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compression_saves_bytes_and_loses_nothing(name: str) -> None:
    sent = update(w=np.random.default_rng(0).normal(0, 0.05, (64, 640)))
    codec, plain = TRIED[name], replace(TRIED[name], compression=None)
    blob, larger = encode(sent, codec, {}), encode(sent, plain, {})
    assert len(blob) < 0.95 * len(larger)
    found = decode_update(blob, codec, len(larger), {}).tensors["w"]
    assert (found == decode_update(larger, plain, 0, {}).tensors["w"]).all()
    with pytest.raises(Malformed, match=f"1 to {len(larger) - 1} bytes, found {len(larger)}"):
        decode_update(blob, codec, len(larger) - 1, {})


def make_frame(size: int, states: int | None, window: int = 20) -> bytes:
    """Return a Zstandard frame of zeros. states: the size that it states; None: none."""
    zstd = load()
    options = {zstd.CompressionParameter.window_log: window}
    compressor = zstd.ZstdCompressor(options=options)
    compressor.set_pledged_input_size(None if states is None else size)
    frame = bytearray(compressor.compress(bytes(size)) + compressor.flush())
    if states not in (None, size):  # RFC 8878, 3.1.1.1: 4 bytes after the magic number and flags
        assert frame[4] >> 5 == 0b101
        frame[5:9] = struct.pack("<I", states)
    return bytes(frame)


@pytest.mark.skipif("int8-zstd" not in TRIED, reason="the extra zstd is not installed")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: b"", "header of a Zstandard frame"),
        (lambda: b"no frame at all", "header of a Zstandard frame"),
        (lambda: make_frame(1 << 30, 1 << 30, 27), "1 to 1048576 bytes, found 1073741824"),
        (lambda: make_frame(1 << 19, None), "1 to 1048576 bytes, found None"),
        (lambda: make_frame(0, 0), "1 to 1048576 bytes, found 0"),
        (lambda: make_frame(1 << 20, 1 << 18), ""),
        (lambda: make_frame(1 << 18, 1 << 20), ""),
        (lambda: make_frame(1 << 18, 1 << 18)[:-4], "one whole frame of 262144 bytes"),
        (lambda: make_frame(9, 9) + b"more", "one whole frame of 9 bytes"),
        (lambda: make_frame(9, 9) * 2, "one whole frame of 9 bytes"),
        (lambda: struct.pack("<III", 0x184D2A50, 4, 0), "found 0"),  # a frame to skip
    ],
)
def test_a_false_frame_is_malformed(make: Callable[[], bytes], why: str) -> None:
    with pytest.raises(Malformed, match=f"^zstd: .*{why}"):
        decode_update(make(), TRIED["int8-zstd"], LIMIT, {})


@pytest.mark.skipif("int8-zstd" not in TRIED, reason="the extra zstd is not installed")
def test_a_frame_that_requires_a_large_window_is_malformed() -> None:
    """Its decoder would allocate the window: 128 MiB for a limit of 16 MiB."""
    frame = make_frame(1 << 24, 1 << 24, 27)
    assert len(frame) < 2000
    with pytest.raises(Malformed, match="too much memory"):
        decode_update(frame, TRIED["int8-zstd"], 1 << 24, {})


def test_without_the_extra_its_codecs_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(MissingExtra, match=r"codec with zstd needs.*backports.zstd.*\[zstd\]"):
        find_codec("int8-zstd")
    assert {"raw", "int8"} < set(codec_names()) < set(CODECS)
    assert not any(CODECS[name].compression for name in codec_names())


def test_an_error_in_a_codec_is_a_malformed_update() -> None:
    broken = Codec("broken", "", "", lambda t: t, lambda t: {"w": t["absent"]}, lambda n: n)
    with pytest.raises(Malformed, match="codec broken: KeyError"):
        decode_update(encode(update(w=[1.0]), broken, {}), broken, LIMIT, {})


def test_a_codec_with_an_unsupported_dtype_is_named_in_the_error() -> None:
    made = replace(CODECS["raw"], name="wide", encode=lambda t: {"w": t["w"].astype(np.uint16)})
    with pytest.raises(Refused, match=r"codec wide: ValueError: tensor w: .*found uint16"):
        encode(update(w=[1.0]), made, {})


TOY = """
from federated.wire.codecs.codec import Codec
NEGATED = Codec("negated", "minus", "float32", lambda t: {k: -v for k, v in t.items()},
                lambda t: {k: -v for k, v in t.items()}, lambda count: 4 * count)
"""


@pytest.mark.usefixtures("forgotten_extensions")
def test_an_installed_package_adds_a_codec_and_a_broken_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "toy_negated.py").write_text(TOY)
    points = {"negated": "toy_negated:NEGATED", "broken": "no_such_module:CODEC"}
    install(tmp_path, "toy-codecs", {"espalier.codecs": points})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_loaded_codec("negated").encode({"w": np.ones(1)})["w"].tolist() == [-1.0]
    assert set(codec_names()) == {*CODECS, "negated"}
    assert "codec 'broken' of the package toy-codecs" in caplog.text


@pytest.mark.usefixtures("forgotten_extensions")
def test_a_name_from_a_message_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign_codec.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unknown, match="unknown codec 'foreign_codec:NEGATED'; known: "):
        find_loaded_codec("foreign_codec:NEGATED")
    assert "foreign_codec" not in sys.modules
    find_codec("foreign_codec:NEGATED")  # the owner of this machine names it
    assert find_loaded_codec("foreign_codec:NEGATED").name == "negated"
