"""A device trains weights that it downloaded in an encoded file, or refuses the file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federated.device.task_execution import carry_out
from federated.errors import WireError
from federated.wire import tensors
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import decode_update
from federated.wire.codecs.weights import decode_weights, encode_weights, pack_weights
from tests.support.small_tasks import PYTORCH, SMALL, examples, parameters, task


@pytest.mark.parametrize("updates", ["raw", "fp16", "int8"])
def test_a_device_trains_the_weights_that_it_decodes(tmp_path, updates):
    """It sends the same update as with these weights as a raw download."""
    whole = parameters(SMALL)
    encoded = b"".join(pack_weights({}, encode_weights(whole, "fp16"), "fp16"))
    decoded = decode_weights(encoded, "fp16", len(encoded))
    assert any((decoded[name] != value).any() for name, value in whole.items())
    given, found = replace(task(), codec=updates), []
    for data, codec in ((encoded, "fp16"), (tensors.encode({}, decoded), "raw")):
        (tmp_path / codec).mkdir()
        weights, result = tmp_path / codec / "weights", tmp_path / codec / "update"
        weights.write_bytes(data)
        carry_out(PYTORCH, replace(given, weights_codec=codec), weights, result, examples())
        update = decode_update(result.read_bytes(), find_codec(updates), 10**6, decoded)
        found.append(update.tensors)
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


def keep(array):
    return array


def encode(change=keep):
    """Return encoded weights, the first encoded tensor of which is changed."""
    arrays = encode_weights(parameters(SMALL), "fp16")
    first = min(name for name in arrays if name.startswith("encoded/"))
    return tensors.encode({}, {**arrays, first: change(arrays[first])})


@pytest.mark.parametrize(
    ("data", "codec", "words"),
    [
        (encode(lambda a: a[1:]), "fp16", "expected shape"),
        (encode(lambda a: a.astype(np.float32)), "fp16", "expected float16, found float32"),
        (encode()[:-1], "fp16", "expected"),
        (encode(), "raw", "missing or unexpected tensors"),
        (encode(), "int8", "expected one of the codecs raw, fp16"),
    ],
)
def test_invalid_encoded_weights_are_refused(tmp_path, data, codec, words):
    """An agent that knows no codec of weights reads them as raw ones."""
    (tmp_path / "weights").write_bytes(data)
    given = replace(task(), weights_codec=codec)
    with pytest.raises(WireError, match=words):
        carry_out(PYTORCH, given, tmp_path / "weights", tmp_path / "update", examples())
    assert not (tmp_path / "update").exists()
