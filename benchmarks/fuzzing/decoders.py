"""Everything that reads what others wrote: each with real encodings to start from, and the errors
that it may answer with.

A decoder is fed one input. Whatever it raises beyond its declared errors is a crash, an answer that
does not survive being encoded again included.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.fuzzing import samples
from coordinator.access.authority import Authority
from coordinator.access.enrolment_server import build_application
from coordinator.assign import constraints
from coordinator.broker import passwords
from coordinator.fleet.fleet import Fleet
from coordinator.fleet.inbox import Inbox
from coordinator.round.round_events import PhaseBegan
from coordinator.round.task_state import Planned, TaskState
from coordinator.settings import config
from edge_agent.infer import inputs, replies
from export import bundle
from federated.device import profile_file
from federated.device.participant import Equipment, Participant
from federated.device.spool import Spool
from federated.errors import (
    ConfigError,
    DataError,
    EspalierError,
    ExportError,
    Refused,
    UsageError,
    WireError,
)
from federated.task import Task, Update
from federated.training import device_memory
from federated.wire import envelope, messages, tensors, topics
from federated.wire.address import parse_address
from federated.wire.chunks import Receiver, Sender
from federated.wire.codecs.catalogue import CODECS
from federated.wire.codecs.raw import RAW
from federated.wire.enrolment_token import ENROL, parse_token
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.partial import Partial

__all__ = ["NAMES", "Decoder", "decoders"]

MEBIBYTE = 1 << 20
NAMES = (
    "messages",
    "tensors",
    "topics",
    "chunks",
    "updates",
    "coordinator",
    "agent",
    "manifests",
    "sheets",
    "configs",
    "passwords",
    "memories",
    "questions",
    "examples",
    "addresses",
    "selections",
    "tokens",
    "enrolment",
    "parts",
    "notes",
)
Shape = Literal["text", "msgpack", "blob"]


@dataclass(frozen=True)
class Decoder:
    """What is fuzzed. feed: decodes one input. errors: that it may raise. seeds: real encodings.
    shape: of an input, for what bends it.

    largest: bytes of an input. memory: bytes beyond which no input may take it. share: of the
    inputs, beside the others.
    """

    feed: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    shape: Shape = "msgpack"
    largest: int = 4096
    memory: int = 16 * MEBIBYTE
    share: float = 1.0


# ---- the wire ------------------------------------------------------------------------------------


def message(data: bytes) -> None:
    found = envelope.decode(data)
    said = envelope.encode(found)
    assert envelope.encode(envelope.decode(said)) == said, "a message must survive being encoded"


def blob(data: bytes) -> None:
    meta, values = tensors.decode(data)
    again, same = tensors.decode(tensors.encode(meta, values))
    assert repr(again) == repr(meta), "a blob's header must survive being encoded"
    assert [(n, v.dtype, v.shape, v.tobytes()) for n, v in same.items()] == [
        (n, v.dtype, v.shape, v.tobytes()) for n, v in values.items()
    ]


def topic(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    place = topics.parse(text)
    for pattern in topics.coordinator_patterns("r"):
        if topics.matches(pattern, text) and place is not None:
            assert place.run == "r", "what a coordinator hears is of its run"


def transfer(data: bytes) -> None:
    """Frames of two bytes of length and a message: what a receiver and a sender of one transfer
    might hear.
    """
    receiver = Receiver(samples.MANIFEST, limit=samples.MANIFEST.size)
    sender = Sender(samples.MANIFEST, samples.DATA, 0.0)
    for now, payload in enumerate(samples.frames(data)):
        with contextlib.suppress(WireError):
            match envelope.decode(payload):
                case messages.Chunk() as chunk:
                    receiver.take(chunk, float(now))
                case messages.Grant() as grant:
                    sender.granted(grant.have, grant.open, float(now))
                    assert len(list(sender.due(float(now)))) <= samples.MANIFEST.total
                case messages.Manifest() as manifest:
                    Receiver(manifest, limit=MEBIBYTE)
        if receiver.complete:
            with contextlib.suppress(Refused):
                assert bytes(receiver.finish()) == samples.DATA, (
                    "what has the digest is what was sent"
                )


class Anything:
    """A collector that takes every update, for as long as a fuzzer goes on."""

    def limit(self, task: Task) -> int:
        return MEBIBYTE

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        pass

    def fold(self, state: TaskState, update: Update) -> None:
        pass

    def prepare(self, agent: str) -> Planned:
        return Planned(samples.TASK)

    def snapshot(self) -> None:
        pass


class Listening:
    """A whole coordinator, or agent, behind a link; it hears frames of topic and payload."""

    def __init__(self, role: str, folder: Path) -> None:
        self.broker = MemoryBroker()
        self.stranger = MemoryLink(self.broker, "stranger")
        link = MemoryLink(self.broker, role)
        self.role = role
        if role == "agent":
            self.participant = Participant(
                link,
                samples.CARD,
                "a",
                "s1",
                Equipment(lambda run: samples.PROFILE, samples.Idle(), Spool(folder)),
            )
            self.participant.join()
        else:
            self.fleet = Fleet(link, samples.CARD, folder)
            self.fleet.endpoint.announce()
            began = PhaseBegan(
                self.fleet.clock(),
                samples.TASK.work,
                samples.TASK.round,
                (Planned(samples.TASK),),
                1e9,
                1,
            )
            self.fleet.driver.begin(began, Anything())

    def hear(self, data: bytes) -> None:
        for frame in samples.frames(data):
            where, _, payload = frame.partition(b"\0")
            self.stranger.publish(where.decode("utf-8", "replace"), payload)
        for _ in range(8):
            if self.role == "agent":
                self.participant.turn(0)
            else:
                self.fleet.turn(0)


def listening(role: str) -> Callable[[bytes], object]:
    """A role that is made anew now and then, so that what strangers leave in it stays small."""
    folder = Path(tempfile.mkdtemp(prefix="espalier-fuzz-"))
    state: list[Listening] = []
    count = 0

    def feed(data: bytes) -> None:
        nonlocal count
        if count % 64 == 0 or (role == "agent" and state and state[0].participant.over):
            state[:] = [Listening(role, folder)]
        count += 1
        state[0].hear(data)

    return feed


# ---- files and questions -------------------------------------------------------------------------


def file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A decoder of files, fed with bytes."""
    folder = Path(
        tempfile.mkdtemp(
            prefix="espalier-fuzz-",
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None,  # noqa: S108
        )
    )

    def feed(data: bytes) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return feed


def update(path: Path) -> object:
    if not path.stat().st_size:
        return None  # no transfer is empty
    for codec in CODECS.values():
        with contextlib.suppress(WireError):
            reader.read(path, codec)
    return reader.read(path, RAW)


reader = Inbox.__new__(Inbox)  # `read` needs nothing of one


def question(data: bytes) -> object:
    return replies.parse_inputs(data, "question")


def example(data: bytes) -> object:
    return (
        inputs.parse_npy(data, "example")
        if data.startswith(np.lib.format.MAGIC_PREFIX)
        else inputs.parse_json(data, "example")
    )


def left(path: Path) -> object:
    """What an agent's spool makes of a note that lies in it."""
    return Spool(path.parent)._read(path, samples.NOTED)


def part(path: Path) -> object:
    """A transfer that goes on by the bitmap that lies beside it."""
    path.with_name("w.part").write_bytes(samples.DATA)
    found = Partial(samples.MANIFEST, path.with_name("w"), limit=samples.MANIFEST.size)
    found.close()
    return found.complete


def enrolling() -> Callable[[bytes], object]:
    """A real authority behind its application, which must answer anything, and never with 500."""
    authority = Authority(Path(tempfile.mkdtemp(prefix="espalier-fuzz-")))
    authority.registry.add_token(samples.SECRET, samples.PROFILE.agent, 2**40)
    app = build_application(authority, lambda: "1883")

    async def answer(body: bytes) -> int:
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        scope = {
            "type": "http",
            "method": "POST",
            "path": ENROL,
            "raw_path": ENROL.encode(),
            "headers": [],
            "query_string": b"",
            "http_version": "1.1",
        }
        await app(scope, receive, send)
        return status

    def feed(data: bytes) -> None:
        assert asyncio.run(answer(data)) in (200, 400, 403, 413), (
            "a question must not break the coordinator"
        )

    return feed


def words(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def configuration(path: Path) -> object:
    return config.load(path, {}, [])


def kept(path: Path) -> object:
    return device_memory.read(path.parent, 1)


def manifest(path: Path) -> object:
    return bundle.manifest(path.parent)


def decoders() -> dict[str, Decoder]:
    """All decoders by name. They keep quiet: what they refuse is what is expected."""
    logging.disable()
    return {
        "messages": Decoder(message, (WireError,), samples.messages(), largest=MEBIBYTE // 8),
        "tensors": Decoder(blob, (WireError,), samples.blobs(), "blob", largest=MEBIBYTE // 8),
        "topics": Decoder(topic, (), samples.topic_names(), "text", largest=400),
        "chunks": Decoder(transfer, (WireError,), samples.transfers(), "msgpack"),
        "updates": Decoder(file("1.update", update), (WireError,), samples.updates(), "blob"),
        "coordinator": Decoder(
            listening("coordinator"), (), samples.said_to_coordinator(), "msgpack", share=0.5
        ),
        "agent": Decoder(listening("agent"), (), samples.said_to_agent(), "msgpack", share=0.5),
        "manifests": Decoder(
            file(bundle.MANIFEST, manifest), (ExportError,), samples.manifests(), "text"
        ),
        "sheets": Decoder(
            file("sheet.json", profile_file.read),
            (ConfigError,),
            samples.sheets(),
            "text",
            memory=32 * MEBIBYTE,
        ),
        "configs": Decoder(
            file("run.toml", configuration),
            (ConfigError, UsageError),
            samples.configs(),
            "text",
            share=0.3,
        ),
        "passwords": Decoder(
            file("passwords", passwords.read),
            (ConfigError,),
            samples.passwords(),
            "text",
            share=0.03,
        ),
        "memories": Decoder(file("1.kept", kept), (WireError,), samples.blobs(), "blob"),
        "questions": Decoder(question, (DataError,), samples.questions(), "text"),
        "examples": Decoder(example, (DataError,), samples.examples(), "text"),
        "addresses": Decoder(
            words(parse_address), (EspalierError,), samples.ADDRESSES, "text", largest=400
        ),
        "selections": Decoder(
            words(constraints.parse), (EspalierError,), samples.SELECTIONS, "text", largest=1000
        ),
        "tokens": Decoder(words(parse_token), (UsageError,), samples.tokens(), "text", largest=400),
        "enrolment": Decoder(
            enrolling(), (), samples.enrolments(), "text", largest=20_000, share=0.1
        ),
        "parts": Decoder(file("w.have", part), (), samples.parts()),
        "notes": Decoder(file("t.task", left), (), samples.notes()),
    }
