"""List the decoders of foreign data to fuzz, each with real encodings to start from and the errors
that it may raise.

A decoder gets one input. Any other exception is a crash. A result that changes when it is encoded
again counts as a crash too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np

from benchmarks.fuzzing import samples
from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server import build_application
from coordinator.assign import agent_filter
from coordinator.broker import passwords
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_inbox import Inbox
from coordinator.round.collector_interface import Collector
from coordinator.round.round_events import PhaseBegan
from coordinator.round.task_state import Planned, TaskState
from coordinator.settings import config
from edge_agent.infer import inputs, requests_and_replies
from export import release_reader
from export.onnx_session import Session
from federated.device import profile_file
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.trainers.graph_checks import refuse_contents
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
from federated.training import state_between_rounds
from federated.wire import envelope, messages, tensors, topics
from federated.wire.chunks import Receiver, Sender
from federated.wire.codecs.catalogue import codec_names, find_loaded_codec
from federated.wire.codecs.raw import RAW
from federated.wire.enrolment_token import ENROL, parse_token
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.mqtt_address import parse_mqtt_address
from federated.wire.partial_file import PartialFile

__all__ = ["Decoder", "make_decoders"]

MEBIBYTE = 1 << 20
Shape = Literal["text", "msgpack", "blob"]


@dataclass(frozen=True)
class Decoder:
    """A decoder under test.

    feed: decodes one input
    errors: declared errors
    seeds: real encodings
    shape: of an input, for mutations
    largest: bytes of an input
    memory: most bytes that an input may take
    share: weight in the distribution of inputs
    """

    feed: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    shape: Shape = "msgpack"
    largest: int = 4096
    memory: int = 16 * MEBIBYTE
    share: float = 1.0


# ---- wire ------------------------------------------------------------------------------------


def check_message(data: bytes) -> None:
    found = envelope.decode(data)
    encoded = envelope.encode(found)
    assert envelope.encode(envelope.decode(encoded)) == encoded, (
        "a message must survive being encoded"
    )


def check_blob(data: bytes) -> None:
    meta, values = tensors.decode(data)
    again, same = tensors.decode(tensors.encode(meta, values))
    assert repr(again) == repr(meta), "a blob's header must survive being encoded"
    assert [(n, v.dtype, v.shape, v.tobytes()) for n, v in same.items()] == [
        (n, v.dtype, v.shape, v.tobytes()) for n, v in values.items()
    ]


def check_graph(data: bytes) -> None:
    refuse_contents("a graph", data)


def check_topic(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    place = topics.parse(text)
    for pattern in topics.coordinator_patterns("r"):
        if topics.matches(pattern, text) and place is not None:
            assert place.run == "r", "a coordinator only receives topics of its run"


def check_transfer(data: bytes) -> None:
    """Feed frames with a length of two bytes to a receiver and a sender of one transfer."""
    receiver = Receiver(samples.MANIFEST, limit=samples.MANIFEST.size)
    sender = Sender(samples.MANIFEST, samples.DATA, 0.0)
    for now, payload in enumerate(samples.split_frames(data)):
        with contextlib.suppress(WireError):
            match envelope.decode(payload):
                case messages.Chunk() as chunk:
                    receiver.take(chunk, float(now))
                case messages.Grant() as grant:
                    sender.take_grant(grant.have, grant.open, float(now))
                    assert len(list(sender.next_chunks())) <= samples.MANIFEST.total
                case messages.Manifest() as manifest:
                    Receiver(manifest, limit=MEBIBYTE)
        if receiver.complete:
            with contextlib.suppress(Refused):
                assert bytes(receiver.verify()) == samples.DATA, (
                    "data with the digest must be the data sent"
                )


class AcceptAll(Collector):
    """Collector that accepts every update."""

    def limit(self, task: Task) -> int:
        return MEBIBYTE

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        pass

    def fold(self, state: TaskState, update: Update) -> None:
        pass

    def prepare(self, agent: str) -> Planned:
        return Planned(samples.TASK)


class Listener:
    """Whole coordinator or agent behind a link, which receives frames of topic and payload."""

    def __init__(self, role: str, folder: Path) -> None:
        self.broker = MemoryBroker()
        self.stranger = MemoryLink(self.broker, "stranger")
        link = MemoryLink(self.broker, role)
        self.role = role
        if role == "agent":
            self.participant = AgentEventLoop(
                link,
                samples.CARD,
                "a",
                "s1",
                Equipment(lambda run: samples.PROFILE, samples.Idle(), Spool(folder)),
            )
            self.participant.join()
        else:
            self.fleet = MessageLoop(link, samples.CARD, folder)
            self.fleet.endpoint.announce()
            began = PhaseBegan(
                self.fleet.clock(),
                samples.TASK.work,
                samples.TASK.round,
                (Planned(samples.TASK),),
                1e9,
                1,
            )
            self.fleet.driver.begin(began, AcceptAll())

    def hear(self, data: bytes) -> None:
        for frame in samples.split_frames(data):
            where, _, payload = frame.partition(b"\0")
            self.stranger.publish(where.decode("utf-8", "replace"), payload)
        for _ in range(8):
            if self.role == "agent":
                self.participant.turn(0)
            else:
                self.fleet.turn(0)


def listen_as(role: str) -> Callable[[bytes], object]:
    """Return a decoder with a role that is rebuilt regularly, so that foreign data in it stays
    small.
    """
    folder = Path(tempfile.mkdtemp(prefix="espalier-fuzz-"))
    state: list[Listener] = []
    count = 0

    def feed(data: bytes) -> None:
        nonlocal count
        if count % 64 == 0 or (role == "agent" and state and state[0].participant.state.over):
            state[:] = [Listener(role, folder)]
        count += 1
        state[0].hear(data)

    return feed


# ---- files and requests -------------------------------------------------------------------------


def decode_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a decoder that writes its input to a file and reads it."""
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


def read_update(path: Path) -> object:
    if not path.stat().st_size:
        return None  # no transfer is empty
    for codec in map(find_loaded_codec, codec_names()):
        with contextlib.suppress(WireError):
            reader.read(path, codec, MEBIBYTE, {})
    return reader.read(path, RAW, MEBIBYTE, {})


reader = Inbox.__new__(Inbox)  # `read` uses no attribute


DIGITS = cast(Session, SimpleNamespace(inputs=(1, 8, 8), dtype=np.dtype(np.uint8)))


def parse_question(data: bytes) -> object:
    return requests_and_replies.parse_inputs(data, "question", DIGITS)


def parse_example(data: bytes) -> object:
    return (
        inputs.parse_npy(data, "example")
        if data.startswith(np.lib.format.MAGIC_PREFIX)
        else inputs.parse_json(data, "example")
    )


def read_note(path: Path) -> object:
    """Read a note in an agent's spool."""
    return Spool(path.parent)._read(path, samples.NOTED)


def read_part(path: Path) -> object:
    """Resume a transfer from its bitmap file."""
    path.with_name("w.part").write_bytes(samples.DATA)
    found = PartialFile(samples.MANIFEST, path.with_name("w"), limit=samples.MANIFEST.size)
    found.close()
    return found.complete


def post_enrolment() -> Callable[[bytes], object]:
    """Return a decoder that posts to a real authority, which must answer anything without status
    500.
    """
    authority = Authority(Path(tempfile.mkdtemp(prefix="espalier-fuzz-")))
    authority.registry.add_token(samples.SECRET, samples.PROFILE.agent, 2**40)
    app = build_application(authority, "1883")

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
            "a request must not break the coordinator"
        )

    return feed


def decode_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def read_memory(path: Path) -> object:
    return state_between_rounds.read(path.parent, 1)


def read_manifest(path: Path) -> object:
    return release_reader.read_manifest(path.parent)


def make_decoders() -> dict[str, Decoder]:
    """Return all decoders by name, and disable logging, since rejections are expected."""
    logging.disable()
    return make_message_decoders() | make_text_decoders()


def make_message_decoders() -> dict[str, Decoder]:
    """Return the decoders of messages, tensors and binary files by name."""
    return {
        "messages": Decoder(check_message, (WireError,), samples.messages(), largest=MEBIBYTE // 8),
        "tensors": Decoder(
            check_blob, (WireError,), samples.blobs(), "blob", largest=MEBIBYTE // 8
        ),
        "topics": Decoder(check_topic, (), samples.topic_names(), "text", largest=400),
        "chunks": Decoder(check_transfer, (WireError,), samples.transfers(), "msgpack"),
        "updates": Decoder(
            decode_file("1.update", read_update), (WireError,), samples.updates(), "blob"
        ),
        "coordinator": Decoder(
            listen_as("coordinator"), (), samples.said_to_coordinator(), "msgpack", share=0.5
        ),
        "agent": Decoder(listen_as("agent"), (), samples.said_to_agent(), "msgpack", share=0.5),
        "memories": Decoder(
            decode_file("1.kept", read_memory), (WireError,), samples.blobs(), "blob"
        ),
        "parts": Decoder(decode_file("w.have", read_part), (), samples.parts()),
        "notes": Decoder(decode_file("t.task", read_note), (), samples.notes()),
        "graphs": Decoder(check_graph, (Refused,), samples.training_graphs(), "blob"),
    }


def make_text_decoders() -> dict[str, Decoder]:
    """Return the decoders of text files, requests and command-line values by name."""
    return {
        "manifests": Decoder(
            decode_file(release_reader.MANIFEST, read_manifest),
            (ExportError,),
            samples.manifests(),
            "text",
        ),
        "sheets": Decoder(
            decode_file("sheet.json", profile_file.read),
            (ConfigError,),
            samples.sheets(),
            "text",
            memory=32 * MEBIBYTE,
        ),
        "configs": Decoder(
            decode_file("run.toml", lambda path: config.load(path, {}, [])),
            (ConfigError, UsageError),
            samples.configs(),
            "text",
            share=0.3,
        ),
        "passwords": Decoder(
            decode_file("passwords", passwords.read),
            (ConfigError,),
            samples.passwords(),
            "text",
            share=0.03,
        ),
        "questions": Decoder(parse_question, (DataError,), samples.questions(), "text"),
        "examples": Decoder(parse_example, (DataError,), samples.examples(), "text"),
        "addresses": Decoder(
            decode_text(parse_mqtt_address),
            (EspalierError,),
            samples.ADDRESSES,
            "text",
            largest=400,
        ),
        "selections": Decoder(
            decode_text(agent_filter.parse),
            (EspalierError,),
            samples.SELECTIONS,
            "text",
            largest=1000,
        ),
        "tokens": Decoder(
            decode_text(parse_token), (UsageError,), samples.tokens(), "text", largest=400
        ),
        "enrolment": Decoder(
            post_enrolment(), (), samples.enrolments(), "text", largest=20_000, share=0.1
        ),
    }
