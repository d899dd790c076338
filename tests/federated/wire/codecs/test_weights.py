"""Encoded weights: what is encoded, exact tensors, sizes and rejected files."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from federated.errors import Malformed, Refused, WireError
from federated.wire import tensors
from federated.wire.codecs.codec import Tensors
from federated.wire.codecs.weights import (
    choose_weights_codec,
    decode_weights,
    encode_weights,
    list_weights_codecs,
    pack_weights,
    restore_weights,
)

LOSSY = [name for name in list_weights_codecs() if name != "raw"]
THIRD = np.float32(1 / 3)


def make_weights() -> dict[str, np.ndarray]:
    return {
        "w": np.full((32, 16), THIRD),
        "b": np.full(16, THIRD),
        "bn.running_var": np.full(16, np.float32(1e-9)),
        "bn.num_batches_tracked": np.array(2**40 + 1),
        "c/w": np.full((32, 16), np.float32(1e-9)),
        "large": np.full((2, 2), np.float32(7e4)),
        "index": np.array([[2**30 + 1]], np.int32),
    }


def pack(weights: Tensors, codec: str) -> bytes:
    return b"".join(pack_weights({}, encode_weights(weights, codec), codec))


@pytest.mark.parametrize("codec", LOSSY)
def test_weights_are_rounded_and_everything_else_stays_exact(codec: str) -> None:
    """A third is 1365/4096 in half precision; 7e4 is beyond its range."""
    given = make_weights()
    found = decode_weights(pack(given, codec), codec, sys.maxsize)
    assert found.keys() == given.keys()
    np.testing.assert_array_equal(found["w"], np.full((32, 16), np.float32(1365 / 4096)))
    for name in given.keys() - {"w"}:
        np.testing.assert_array_equal(found[name], given[name])
        assert found[name].dtype == given[name].dtype


def test_raw_weights_are_the_same_bytes_as_their_tensors() -> None:
    given = make_weights()
    assert pack(given, "raw") == bytes(tensors.encode({}, given))


@pytest.mark.parametrize("codec", LOSSY)
def test_encoded_weights_need_half_the_bytes(codec: str) -> None:
    rng = np.random.default_rng(0)
    given = {"w": rng.standard_normal((256, 256)).astype(np.float32)}
    assert len(pack(given, codec)) <= 0.51 * len(pack(given, "raw"))


def test_a_reader_that_ignores_the_codec_finds_no_encoded_tensor() -> None:
    assert "w" not in tensors.decode(pack(make_weights(), "fp16"))[1]


def test_changes_of_rounded_weights_are_added_to_the_exact_ones() -> None:
    """The device received 1365/4096 and returns an eighth more; a variate is a change already."""
    exact = make_weights()
    received = decode_weights(pack(exact, "fp16"), "fp16", sys.maxsize)
    trained = {**received, "w": received["w"] + np.float32(0.125), "new": np.ones((2, 2))}
    found = restore_weights(trained, received, exact)
    np.testing.assert_array_equal(found["w"], np.full((32, 16), THIRD + np.float32(0.125)))
    for name in trained.keys() - {"w"}:
        np.testing.assert_array_equal(found[name], trained[name])


def test_a_device_gets_raw_weights_unless_it_can_decode_others() -> None:
    assert choose_weights_codec("fp16", ("raw", "fp16")) == "fp16"
    assert choose_weights_codec("fp16-zstd", ("raw", "fp16")) == "raw"
    assert choose_weights_codec("fp16", ()) == "raw"


def test_other_codecs_are_refused() -> None:
    with pytest.raises(Refused, match="one of the codecs raw, fp16, fp16-zstd, found int8"):
        decode_weights(pack({}, "raw"), "int8", sys.maxsize)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"encoded/w": np.zeros((2, 2), np.float32)}, "expected float16, found float32"),
        ({"encoded/w": np.zeros(2, np.float16), "w": np.zeros(2)}, "both encoded and not"),
    ],
)
def test_invalid_encoded_weights_are_rejected(sent: Tensors, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        decode_weights(tensors.encode({}, sent), "fp16", sys.maxsize)


@pytest.mark.parametrize("codec", LOSSY)
def test_a_cut_file_is_rejected(codec: str) -> None:
    with pytest.raises(WireError):
        decode_weights(pack(make_weights(), codec)[:-1], codec, sys.maxsize)


@pytest.mark.skipif("fp16-zstd" not in LOSSY, reason="the extra zstd is not installed")
def test_compressed_weights_that_are_too_large_are_not_decompressed() -> None:
    bomb = {"w": np.zeros((1024, 1024), np.float32)}
    assert len(pack(bomb, "fp16-zstd")) < 1024
    with pytest.raises(Malformed, match=r"expected a frame of 1 to 1[0-9]{6} bytes, found 2097"):
        decode_weights(pack(bomb, "fp16-zstd"), "fp16-zstd", 1 << 40)
    with pytest.raises(Malformed, match="expected a frame of 1 to 200000 bytes"):
        decode_weights(pack(bomb, "fp16-zstd"), "fp16-zstd", 100_000)
