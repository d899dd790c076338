"""Decoders: real encodings pass, and whatever else comes is answered with an error that was
declared.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import fuzz, shares
from benchmarks.fuzzing import samples
from benchmarks.fuzzing.decoders import NAMES, Decoder, decoders
from benchmarks.fuzzing.mutation import mutate
from federated.wire import envelope

KNOWN = decoders()
logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_the_names_are_those_of_the_decoders() -> None:
    assert tuple(KNOWN) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_takes_at_least_one_real_encoding_and_refuses_the_others(name: str) -> None:
    taken = 0
    for data in KNOWN[name].seeds:
        with contextlib.suppress(KNOWN[name].errors):
            KNOWN[name].feed(data)
            taken += 1
    assert taken


@pytest.mark.parametrize("name", [name for name in NAMES if name != "passwords"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_bent_is_decoded_or_refused_by_a_declared_error(
    name: str, data: st.DataObject
) -> None:
    decoder = KNOWN[name]
    raw = data.draw(st.one_of(st.sampled_from(list(decoder.seeds)), st.binary(max_size=200)))
    raw = mutate(raw, decoder.shape, random.Random(data.draw(st.integers(0, 2**32)))) or raw
    changed = bytearray(raw)
    for at in data.draw(st.lists(st.integers(0, max(0, len(raw) - 1)), max_size=3)) if raw else []:
        changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(decoder.errors):
        decoder.feed(
            bytes(
                changed[: data.draw(st.integers(0, len(changed)))]
                if data.draw(st.booleans())
                else changed
            )
        )


def test_a_bent_message_is_another_one_that_is_still_msgpack() -> None:
    whole = envelope.encode(samples.TASK)
    made = [mutate(whole, "msgpack", random.Random(seed)) for seed in range(50)]
    assert all(made)
    assert len(set(made)) > 30


def test_frames_are_what_was_framed() -> None:
    assert list(samples.frames(samples.join_frames([b"", b"ab", b"c"]))) == [b"", b"ab", b"c"]


def test_inputs_are_shared_out_as_the_decoders_want_and_none_are_missing() -> None:
    two = {"a": Decoder(bytes, (), ()), "b": Decoder(bytes, (), (), share=0.5)}
    assert shares(100, two) == {"a": 67, "b": 34}


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.processes
@pytest.mark.beside
def test_the_fuzzer_finds_its_way_into_a_decoder(tmp_path: Path) -> None:
    found = fuzz("topics", KNOWN["topics"], 500, 1, tmp_path)
    assert (found.inputs, found.crashes) == (500, 0)
    assert found.edges > 40
    assert 0 < found.peak < found.limit
