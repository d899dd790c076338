"""The fuzzed decoders accept real encodings, and reject other input with a declared error."""

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

from benchmarks.fuzzing import samples
from benchmarks.fuzzing.command import divide_inputs, fuzz
from benchmarks.fuzzing.decoders import Decoder, make_decoders
from benchmarks.fuzzing.mutation import mutate
from federated.wire import envelope

KNOWN = make_decoders()
logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", list(KNOWN))
def test_every_decoder_accepts_a_real_encoding(name: str) -> None:
    taken = 0
    for data in KNOWN[name].seeds:
        with contextlib.suppress(KNOWN[name].errors):
            KNOWN[name].feed(data)
            taken += 1
    assert taken


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "passwords"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_inputs_decode_or_raise_a_declared_error(name: str, data: st.DataObject) -> None:
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


def test_a_mutated_message_differs_and_is_still_msgpack() -> None:
    whole = envelope.encode(samples.TASK)
    made = [mutate(whole, "msgpack", random.Random(seed)) for seed in range(50)]
    assert all(made)
    assert len(set(made)) > 30


def test_frames_round_trip() -> None:
    assert list(samples.split_frames(samples.join_frames([b"", b"ab", b"c"]))) == [b"", b"ab", b"c"]


def test_inputs_are_divided_by_the_shares_of_the_decoders() -> None:
    two = {"a": Decoder(bytes, (), ()), "b": Decoder(bytes, (), (), share=0.5)}
    assert divide_inputs(100, two) == {"a": 67, "b": 34}


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.processes
def test_the_fuzzer_covers_branches_of_a_decoder(tmp_path: Path) -> None:
    found = fuzz("topics", KNOWN["topics"], 500, 1, tmp_path)
    assert (found.inputs, found.crashes) == (500, 0)
    assert found.edges > 40
    assert 0 < found.peak < found.limit
