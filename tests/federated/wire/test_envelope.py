"""Every kind of message survives encoding and decoding, and malformed ones are rejected."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import subprocess
import sys
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.errors import Malformed, ProtocolMismatch, Refused
from federated.safe_text import MAX_TEXT
from federated.task import Card, Profile, Recipe, Task, Timing
from federated.wire import envelope
from federated.wire import messages as m
from federated.wire.release_messages import (
    Installed,
    Release,
    Serving,
    Software,
    SoftwareCard,
    Version,
)
from models.submodel import Network, Submodel

NETWORK = Network("preresnet", "small", (1, 8, 8), 10, (4.9,), (6.0,))
SUBMODEL = Submodel(NETWORK, 0.5, ((1, 1), (1, 0)), ("scaler",))
CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 25, (4.9,), (6.0,))
MANIFEST = m.Manifest("1-2-train-w0.5", 3000, 1024, "ab" * 32)
VERSION = Version("ab" * 6, 9, "ab" * 32, 100, ("w1-d2",), {"a": "w1-d2"})
ALL: dict[str, m.Message] = {
    "abort": m.Abort(1, 2, "late"),
    "echo": m.Echo("pi", 1.5, 2.5),
    "chunk": m.Chunk("t", 0, 3, 3000, 7, b"\x00\xff"),
    "failure": m.Failure("r", 1, 2, "train", SUBMODEL.name, "out of memory"),
    "goodbye": m.Goodbye("the run is over"),
    "grant": m.Grant("t", b"\x05", True, "", (m.Part(0, 1024, "https://host/0"),)),
    "heartbeat": m.Heartbeat(
        "a", "s", "train", 3, 0.5, "train", 4, 10, m.Condition(48.5, False, "mains")
    ),
    "installed": Installed("a", "", "0.2.0", "0.3.0-abababab", "its checks failed"),
    "manifest": MANIFEST,
    "offer": m.Offer(MANIFEST, "r", 1, 2, "calibrate", "w1-d2@agent-7"),
    "profile": Profile(
        "a",
        "h",
        "Linux",
        0.5,
        10**9,
        1e6,
        270336,
        "torch",
        CARD,
        (Timing(SUBMODEL, 32, 0.01),),
        {"zico": {"w1": 2.0}},
    ),
    "receipt": m.Receipt("t", False, "too large"),
    "refusal": m.Refusal("no", "joining"),
    "release": Release("r", VERSION, Version("cd" * 6, 10, "cd" * 32, 200, ("w1-d2",)), ("a", "b")),
    "run": m.Run("r", "fedfa", "preresnet", NETWORK, (SUBMODEL,), 32, "s0", CARD),
    "serving": Serving(
        "a",
        "s",
        "ab" * 6,
        "w1-d2",
        "fp32",
        "CPUExecutionProvider",
        0.001,
        0.002,
        -0.5,
        40,
        refused="cd" * 6,
        reason="no",
    ),
    "wanted": SoftwareCard("r", Software("0.3.0", "ab" * 32, 7), None, ("a",), "0.2.9-abababab"),
    "status": m.Status("a", "s", True),
    "task": Task(
        "r", 1, 2, "a", "train", SUBMODEL, "v1", "0" * 64, 10, Recipe(momentum=0.8, seed=3), 60.0
    ),
}


def packed(kind: str, body: Any, v: Any = envelope.PROTOCOL) -> bytes:
    payload: bytes = msgpack.packb({"v": v, "kind": kind, "body": body})
    return payload


def body(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(envelope.encode(ALL[kind]))["body"]
    return found


def test_there_is_an_example_of_every_kind() -> None:
    assert ALL.keys() == envelope.MESSAGES.keys()


@pytest.mark.parametrize("kind", envelope.MESSAGES)
def test_every_kind_is_decoded_to_the_same_message(kind: str) -> None:
    assert envelope.decode(envelope.encode(ALL[kind])) == ALL[kind]
    assert type(envelope.decode(envelope.encode(ALL[kind]))) is envelope.MESSAGES[kind]


def test_an_unknown_loss_stays_unknown() -> None:
    beat = envelope.decode(envelope.encode(m.Heartbeat("a", "s", "idle", 0)))
    assert isinstance(beat, m.Heartbeat)
    assert math.isnan(beat.loss)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (m.Failure("r", 1, 1, "train", "w1", "x" * 16_000), "reason"),
        (m.Receipt("t", False, "x" * 16_000), "reason"),
        (m.Goodbye("x" * 16_000), "reason"),
        (m.Refusal("no", "x" * 16_000), "about"),
        (m.Status("a", "s", True, "x" * 16_000), "paused"),
        (Serving("a", "s", reason="x" * 16_000), "reason"),
    ],
)
def test_a_long_text_is_cut_to_a_valid_length(message: m.Message, name: str) -> None:
    found = getattr(envelope.decode(envelope.encode(message)), name)
    assert found == "x" * (MAX_TEXT - 3) + "..."


def test_an_error_quotes_a_limited_part_of_a_message() -> None:
    for error in (Malformed, Refused, ProtocolMismatch):
        assert len(str(error("expected a number, found " + "x" * 10**6))) == MAX_TEXT


def test_fields_of_a_later_version_are_ignored() -> None:
    assert envelope.decode(packed("goodbye", {"reason": "x", "mood": "sad"})) == m.Goodbye("x")


def test_an_integer_is_accepted_as_a_float() -> None:
    """JavaScript has no other way to pack a whole number."""
    given = {"agent": "a", "session": "s", "state": "idle", "round": 0, "loss": 1}
    assert envelope.decode(packed("heartbeat", given)) == m.Heartbeat("a", "s", "idle", 0, 1.0)


def test_a_message_without_an_optional_text_can_be_encoded_again() -> None:
    found = envelope.decode(packed("receipt", {"transfer": "t", "accepted": False}))
    assert envelope.decode(envelope.encode(found)) == m.Receipt("t", False)


@pytest.mark.parametrize("v", [0, 2, envelope.PROTOCOL + 1, "3", 3.0, None, True])
def test_another_protocol_is_refused_by_name_even_if_its_body_is_unknown(v: Any) -> None:
    with pytest.raises(
        ProtocolMismatch,
        match=rf"protocol {v!r}, this side {envelope.OLDEST} to {envelope.PROTOCOL}: upgrade",
    ):
        envelope.decode(packed("telepathy", {}, v))


def test_a_message_has_the_lowest_version_that_reads_it() -> None:
    """So peers of the previous version read all messages but those that changed."""
    digest, url = "ab" * 32, "https://h/x"
    chunked, there = (m.Manifest("t", 1, 1024, digest, where) for where in ("", url))
    versions = {
        message: msgpack.unpackb(envelope.encode(message))["v"]
        for message in (
            *(m.Goodbye("x"), m.Grant("t", b"", True), m.Grant("t", b"", True, url)),
            *(chunked, there),
        )
    }
    assert [envelope.decode(envelope.encode(message)) for message in versions] == list(versions)
    assert list(versions.values()) == [3, 3, 4, 3, 4]


@pytest.mark.parametrize("kind", envelope.MESSAGES)
def test_every_required_field_is_required(kind: str) -> None:
    fields = dataclasses.fields(envelope.MESSAGES[kind])
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    for name in required:
        with pytest.raises(Malformed, match=kind):
            envelope.decode(packed(kind, {k: v for k, v in body(kind).items() if k != name}))


NETWORK = body("task")["submodel"]["network"]

WRONG = [
    ("manifest", "transfer", "a/b"),
    ("manifest", "transfer", "a\n"),
    ("manifest", "transfer", ""),
    ("manifest", "transfer", "x" * 226),
    ("manifest", "size", -1),
    ("manifest", "size", True),
    ("manifest", "size", 1.0),
    ("manifest", "chunk", 1023),
    ("manifest", "chunk", (64 << 20) + 1),
    ("manifest", "sha256", "g" * 64),
    ("manifest", "sha256", "a" * 63),
    ("chunk", "index", -1),
    ("chunk", "crc32", 1 << 32),
    ("chunk", "data", "text"),
    ("status", "agent", "all"),
    ("status", "agent", "a+"),
    ("status", "agent", "é"),
    ("status", "online", 1),
    ("heartbeat", "round", -1),
    ("offer", "work", "mine"),
    ("offer", "submodel", "w1/d2"),
    ("release", "agents", ["a/b"]),
    ("release", "stable", {**body("release")["stable"], "assignment": {"a/b": "w1"}}),
    ("release", "stable", {**body("release")["stable"], "name": "ab/../ab/../"}),
    ("release", "stable", {**body("release")["stable"], "name": "cd" * 6}),
    ("release", "canary", {**body("release")["canary"], "size": -1}),
    ("serving", "agent", "all"),
    ("serving", "version", "ab"),
    ("serving", "submodel", "w1/d2"),
    ("serving", "p90", math.nan),
    ("serving", "p90_before", -1.0),
    ("serving", "accuracy", math.inf),
    ("serving", "accuracy_before", -1.7e308),
    ("serving", "accuracy", 1.5),
    ("serving", "examples", -1),
    ("serving", "reason", "x" * 1001),
    ("failure", "reason", "x" * 1001),
    ("receipt", "reason", "x" * 1001),
    ("refusal", "about", "x" * 1001),
    ("status", "paused", "x" * 1001),
    ("heartbeat", "state", "x" * 129),
    ("run", "batch", 0),
    ("task", "agent", "../a"),
    ("task", "run", "#"),
    ("task", "version", ""),
    ("task", "digest", "00"),
    ("task", "size", -1),
    ("task", "deadline", math.nan),
    ("task", "deadline", math.inf),
    ("task", "deadline", 0.0),
    ("task", "submodel", {**body("task")["submodel"], "width": 1.5}),
    ("task", "submodel", {**body("task")["submodel"], "owner": "a/b"}),
    *(
        (kind, name, value)
        for changes in (
            {"vocabulary": -1},
            {"vocabulary": 2**20 + 1},
            {"vocabulary": 5.0},
            {"vocabulary": "5"},
            {"tokenizer": "x" * 129},
            {"frozen": "ab"},
            {"outputs": 0},
            {"outputs": 2**20 + 1},
            {"inputs": [0, 8]},
            {"inputs": [1] * 9},
        )
        for kind, name, value in (
            ("run", "network", NETWORK | changes),
            ("run", "calibration", [body("task")["submodel"] | {"network": NETWORK | changes}]),
            ("task", "submodel", body("task")["submodel"] | {"network": NETWORK | changes}),
        )
    ),
    ("profile", "agent", "all"),
    ("profile", "memory", -1),
    ("profile", "memory", 1 << 62),
    ("profile", "chunk", 1 << 62),
    ("profile", "host", "x" * 1001),
    ("profile", "labels", ["x"] * 17),
    ("profile", "labels", ["x" * 129]),
    ("profile", "board", {"model": "x" * 1001}),
    ("profile", "data", {**body("profile")["data"], "name": "x" * 1001}),
    ("profile", "cpus", math.nan),
    ("profile", "uplink", -1.0),
    (
        "profile",
        "timings",
        [{"submodel": body("task")["submodel"], "batch": 32, "seconds": math.inf}],
    ),
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_field_that_is_wrong_makes_the_message_malformed(
    kind: str, name: str, value: Any
) -> None:
    with pytest.raises(Malformed, match=kind):
        envelope.decode(packed(kind, {**body(kind), name: value}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        msgpack.packb([1, 2]),
        msgpack.packb({"v": envelope.PROTOCOL}),
        msgpack.packb({"v": envelope.PROTOCOL, "kind": "abort"}),
        msgpack.packb({"v": envelope.PROTOCOL, "kind": ["abort"], "body": {}}),
        packed("telepathy", {}),
        packed("abort", []),
        packed("abort", None),
        packed("goodbye", {"reason": "x"}) + b"\x00",
        envelope.encode(ALL["chunk"]).replace(b"crc32", b"\xff\xff\xff32"),
        msgpack.packb({1: 2}),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        b"\x81\xa1v\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
)
def test_other_bytes_are_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed):
        envelope.decode(payload)


def test_only_a_chunk_may_be_large() -> None:
    large = m.Chunk("t", 0, 1, envelope.MAX_MESSAGE, 7, bytes(envelope.MAX_MESSAGE))
    assert envelope.decode(envelope.encode(large)) == large
    empties = (
        b"\xdd" + (4 * envelope.MAX_MESSAGE).to_bytes(4, "big") + b"\x80" * 4 * envelope.MAX_MESSAGE
    )  # four million maps of 64 bytes each, once they are made
    tracemalloc.start()
    for kind in (b"\xa5chunk", b"\xa7goodbye"):
        with pytest.raises(Malformed, match=r"chunk|at most 1048576 bytes"):
            envelope.decode(b"\x83\xa1v\x03\xa4kind" + kind + b"\xa4body" + empties)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(empties)


def test_false_lengths_in_a_message_take_no_memory() -> None:
    payload = (
        b"\x83\xa1v\x03\xa4kind\xa7goodbye\xa4body" + b"\xdd\x00\x01\x00\x00" * 900 + bytes(70_000)
    )
    tracemalloc.start()
    with pytest.raises(Malformed, match="truncated"):
        envelope.decode(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(payload)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(envelope.MESSAGES)), st.data())
def test_a_damaged_message_is_decoded_or_rejected(kind: str, data: st.DataObject) -> None:
    raw = bytearray(envelope.encode(ALL[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed, ProtocolMismatch):
        assert type(envelope.decode(bytes(raw))) in envelope.MESSAGES.values()


FIRST = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from federated.wire.envelope import MESSAGES
ready = threading.Barrier(6)
def convert():
    ready.wait()
    for known in MESSAGES.values():
        try:
            msgspec.convert({}, known)
        except msgspec.ValidationError:
            pass
threads = [threading.Thread(target=convert) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_may_be_the_first_to_decode():
    """A race in msgspec, which prepares a type when it first converts one: a fifth of such
    processes crashed.
    """
    racing = [subprocess.Popen([sys.executable, "-c", FIRST]) for _ in range(8)]
    assert [process.wait(60) for process in racing] == [0] * 8


@given(st.sampled_from(sorted(ALL.keys() - {"chunk"})), st.integers(0), st.booleans())
@settings(max_examples=300)
def test_a_message_with_a_flipped_bit_is_rejected_or_unchanged(
    kind: str, bit: int, coordinator: bool
) -> None:
    epoch = 1795473328630 if coordinator else 0
    payload = bytearray(envelope.encode(ALL[kind], epoch))
    payload[bit // 8 % len(payload)] ^= 1 << bit % 8
    with contextlib.suppress(Malformed, ProtocolMismatch):
        assert envelope.decode_with_epoch(bytes(payload)) == (
            envelope.decode_with_epoch(envelope.encode(ALL[kind], epoch))
        )
