"""Make real encodings of everything that is decoded, as seeds for the fuzzer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from export import release_reader
from federated.device.profile_file import FORMAT, Calibration, Sheet
from federated.device.task_runner_interface import Outcome
from federated.task import Card, Graph, Profile, Recipe, Task, Timing, Update
from federated.wire import envelope, tensors, topics
from federated.wire import messages as m
from federated.wire.chunks import slices, split
from federated.wire.enrolment_token import Token
from federated.wire.release_messages import (
    Installed,
    Release,
    Serving,
    Software,
    SoftwareCard,
    Version,
)
from models.menu import menu
from models.named_network import network

__all__ = [
    "ADDRESSES",
    "CARD",
    "DATA",
    "MANIFEST",
    "NOTED",
    "PROFILE",
    "SECRET",
    "SELECTIONS",
    "TASK",
    "Idle",
    "blobs",
    "configs",
    "enrolments",
    "examples",
    "join_frames",
    "manifests",
    "messages",
    "notes",
    "parts",
    "passwords",
    "questions",
    "said_to_agent",
    "said_to_coordinator",
    "sheets",
    "split_frames",
    "tokens",
    "topic_names",
    "training_graphs",
    "transfers",
    "updates",
]

NETWORK = network("preresnet-10", (1, 8, 8), 10)
SUBMODEL = menu(NETWORK, (0.5, 1.0), (2,))[0]
SAID = Card("digits", (1, 8, 8), "uint8", 10, 100, 25, (4.9,), (6.0,))
PROFILE = Profile(
    "a",
    "h",
    "Linux",
    1.0,
    10**9,
    1e6,
    270336,
    "torch",
    SAID,
    (Timing(SUBMODEL, 32, 0.01),),
    {"zico": {"w1": 2.0}},
)
CARD = m.Run("r", "fedfa", "preresnet-10", NETWORK, (SUBMODEL,), 32, "s0", SAID, {"lr": 0.1})
GRAPHS = (Graph("step", "1" * 64, 400), Graph("evaluation", "2" * 64, 300))
TASK = Task(
    *("r", 1, 2, "a", "train", SUBMODEL, "v1", "0" * 64, 3000, Recipe(options={"mu": 0.1}), 60.0),
    graphs=GRAPHS,
)
DATA = bytes(range(250)) * 10
MANIFEST = split(DATA, 1024, "1-2-train-w0.5-d1")
VERSION = Version("ab" * 6, 9, "ab" * 32, 100, ("w1-d2",), {"a": "w1-d2"})
MESSAGES: tuple[m.Message, ...] = (
    m.Abort(1, 2, "late"),
    m.Chunk("t", 0, 3, 2500, 7, memoryview(b"\x00\xff")),
    m.Failure("r", 1, 2, "train", SUBMODEL.name, "out of memory"),
    m.Goodbye("the run is over"),
    m.Grant(MANIFEST.transfer, b"\x05", True),
    m.Grant(MANIFEST.transfer, b"", True, parts=(m.Part(0, 2500, "https://host/part"),)),
    m.Heartbeat("a", "s1", "train", 3, 0.5, "train", 4, 10, m.Condition(48.5, False, "mains")),
    Installed("a", "", "0.2.0", "0.3.0-abababab", "its checks failed"),
    MANIFEST,
    m.Offer(MANIFEST, "r", 1, 2, "train", SUBMODEL.name),
    PROFILE,
    m.Receipt(MANIFEST.transfer, False, "too large"),
    m.Refusal("no", "joining"),
    Release("r", VERSION, None, ("a", "b")),
    CARD,
    Serving("a", "s1", "ab" * 6, "w1-d2", "fp32", "CPUExecutionProvider", 0.001, 0.002, -0.5, 40),
    SoftwareCard("r", Software("0.3.0", "ab" * 32, 7, ("a",)), None, (), "0.2.9-abababab"),
    m.Status("a", "s1", True),
    TASK,
)
ADDRESSES = (
    b"localhost",
    b"broker.example:1884",
    b"mqtt://user:pass@10.0.0.1:1883",
    b"mqtts://[::1]:8883?ca=/etc/ca.pem",
    b"wss://user@broker/mqtt?cert=a.pem",
)
SELECTIONS = (
    b"memory>=2GB and label=eu",
    b"not (cpus<1 or kind=pi) and uplink>1MB/s",
    b"agent!='a b*'",
)
SECRET, NOTED = bytes(range(16)), "0" * 64  # of a token; run of a note in a spool
CONFIG = b"""name = "r"
rounds = 3
seed = 7
method.name = "fedavg"
[train]
lr = 0.1
[model]
name = "mlp"
[fleet]
min_agents = 2
quorum = 0.5
[assign.submodels]
"a*" = "w1"
[broker]
kind = "mosquitto"
"""


@dataclass
class Idle:
    """Task runner that never finishes."""

    progress: tuple[int, int] = (0, 0)

    def begin(self, task: Task, weights: Path, result: Path) -> None: ...

    def poll(self) -> Outcome | None:
        return None

    def cancel(self) -> None: ...


def join_frames(parts: Sequence[bytes]) -> bytes:
    """Return parts, each after its length in two bytes."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def split_frames(data: bytes, most: int = 16) -> Iterator[bytes]:
    """Yield the parts of `join_frames`, or whatever the first bytes of other data give."""
    at = 0
    for _ in range(most):
        if at + 2 > len(data):
            return
        length = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + length]
        at += 2 + length


def messages() -> list[bytes]:
    return [
        *(envelope.encode(message) for message in MESSAGES),
        *(b"\x83\xa1v\x03\xa4kind\xa3run\xa4body" + bomb for bomb in bombs()),
    ]


def bombs() -> list[bytes]:
    """Return short msgpack that claims much memory: false lengths, and many empty maps."""
    return [
        b"\xdd\x00\x01\x00\x00" * 900 + bytes(20_000),
        b"\xdc\x75\x30" + b"\x80" * 30_000,
        b"\x91" * 2000 + b"\xc0",
    ]


def arrays() -> dict[str, Any]:
    return {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 3), np.int8),
    }


def make_update() -> Update:
    notes = {"loss": 1.0, "labels": [1, 2], "seconds": 2.0, "tallies": {"before": {"count": [3]}}}
    return Update("r", 1, 2, "a", "train", SUBMODEL, "v1", 10, 1, {}, notes)


def blobs() -> list[bytes]:
    headers = [b"\x82\xa7tensors\x90\xa4meta\x81\xa1a" + bomb for bomb in bombs()]
    vast = msgpack.packb({"meta": {}, "tensors": [["w", "float32", [0, 2**39, 2**39], 0]]})
    bare = [
        tensors.PREFIX.pack(tensors.MAGIC, 1, 0, len(header))
        + header
        + bytes(-(16 + len(header)) % 64)
        for header in (*headers, vast)
    ]
    return [
        *bare,
        bytes(tensors.encode({}, {})),
        bytes(tensors.encode({"a": 1, "b": [1.5, None]}, arrays())),
        bytes(tensors.encode({}, {"x": np.ones(70)})),
    ]


def updates() -> list[bytes]:
    return [bytes(tensors.encode(msgspec.to_builtins(make_update()), arrays()))]


def topic_names() -> list[bytes]:
    spelled = [
        topics.run("r"),
        topics.status("r", "a"),
        topics.chunk(topics.upload("r", "a", "t"), 3),
        topics.command("r", "a"),
        topics.everyone("r"),
    ]
    spelled += [
        topics.manifest(topics.model("r", "v1", "w0.5-d2")),
        topics.release_card("r"),
        topics.release_card("r", "software"),
        topics.serving("r", "a", "software"),
        topics.ask("r", "a", "q"),
        topics.profile("r", "a"),
    ]
    return [
        *(text.encode() for text in spelled),
        f"{topics.ROOT}/+/agent/#".encode(),
        b"$SYS/broker",
    ]


def transfers() -> list[bytes]:
    chunks = [envelope.encode(chunk) for chunk in slices(MANIFEST, DATA)]
    grants = [
        envelope.encode(m.Grant(MANIFEST.transfer, bytes([bits]), True)) for bits in (0, 3, 7)
    ]
    return [
        join_frames(chunks),
        join_frames(grants),
        join_frames([chunks[1], grants[0], envelope.encode(MANIFEST), chunks[0]]),
    ]


def address_messages(where: str, *sent: m.Message) -> bytes:
    return join_frames([where.encode() + b"\0" + envelope.encode(message) for message in sent])


def said_to_coordinator() -> list[bytes]:
    chunk = topics.chunk(topics.upload("r", "a", MANIFEST.transfer), 0)
    joined = address_messages(topics.status("r", "a"), MESSAGES[14]) + address_messages(
        topics.profile("r", "a"), PROFILE
    )
    pieces = address_messages(chunk, *slices(MANIFEST, DATA))
    offered = joined + address_messages(topics.say("r", "a"), MESSAGES[7])
    return [
        joined,
        offered + pieces,
        offered
        + address_messages(topics.say("r", "a"), MESSAGES[2])
        + address_messages(topics.heartbeat("r", "a"), MESSAGES[5]),
    ]


def said_to_agent() -> list[bytes]:
    base = topics.model("r", "v1", SUBMODEL.name)
    commands = address_messages(topics.command("r", "a"), TASK, *MESSAGES[4:5], *MESSAGES[9:11])
    weights = address_messages(topics.manifest(base), MANIFEST) + address_messages(
        topics.chunk(base, 0), *slices(MANIFEST, DATA)
    )
    return [
        commands,
        commands + weights,
        address_messages(topics.everyone("r"), MESSAGES[0])
        + address_messages(topics.run("r"), CARD),
        address_messages(topics.status("r", "a"), MESSAGES[14]),
    ]


def manifests() -> list[bytes]:
    weights, graph = (
        release_reader.File("w1.tensors", 10, "ab" * 32),
        release_reader.File("w1.onnx", 20, "cd" * 32),
    )
    entry = release_reader.Entry(
        "w1",
        100,
        1000,
        (
            release_reader.Variant("fp32", graph, 1e-6, 0.9),
            release_reader.Variant("int8-u8s8", graph, 0.1),
        ),
        weights,
        ("no",),
    )
    whole = release_reader.Bundle(
        "r",
        3,
        (1, 8, 8),
        "uint8",
        "class",
        10,
        32,
        (entry,),
        release_reader.File(release_reader.CHECK, 5, "ef" * 32),
        ("0", "1"),
    )
    return [msgspec.json.encode(whole), b"{}"]


def sheets() -> list[bytes]:
    calibration = Calibration("preresnet", "torch", "train", 1, (Timing(SUBMODEL, 32, 0.01),))
    return [
        msgspec.json.encode(
            {
                "format": FORMAT,
                **msgspec.to_builtins(Sheet(PROFILE, (calibration,), versions={"torch": "2"})),
            }
        ),
        b'{"format":1}',
    ]


def configs() -> list[bytes]:
    return [
        CONFIG,
        *(
            file.read_bytes()
            for file in sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))
        ),
    ]


def passwords() -> list[bytes]:
    return [
        b"ada:$7$20000$c2FsdHNhbHRzYWx0$"
        + b"YWJjZA==" * 4
        + b"\n# a remark\n\neve:$6$c2FsdA==$YWJj\n",
        b"bob:plain\n",
    ]


def questions() -> list[bytes]:
    return [b'{"inputs": [[0, 1.5], [true, -3e2]]}', b'{"inputs": 7}']


def examples() -> list[bytes]:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype=np.float32).reshape(2, 3))
    return [file.getvalue(), b"[[1, 2], [3, 4]]", b"[1, 2]\n[3, 4]\n"]


def tokens() -> list[bytes]:
    token = Token("a", "host.example", 8884, SECRET, bytes(range(32)))
    return [str(token).encode(), str(replace(token, host="::1")).encode(), "a@h:1/1-é-é-é".encode()]


def enrolments() -> list[bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, PROFILE.agent)])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    asked = {"secret": SECRET.hex(), "request": request.decode()}
    return [
        json.dumps(asked).encode(),
        json.dumps({**asked, "secret": "0" * 32}).encode(),
        b'{"secret": "\xff"}',
    ]


def parts() -> list[bytes]:
    return [
        msgspec.msgpack.encode((MANIFEST, b"\x05")),
        msgspec.msgpack.encode((MANIFEST, b"")),
        b"\x92\x81\xa8transfer\xa1\xff\xc4\x00",
    ]


def training_graphs() -> list[bytes]:
    """Return a graph in ONNX's protobuf encoding: one operator, and one tensor in another file."""

    def write(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    place = write(1, b"location") + write(2, b"w.bin")
    node, tensor = write(4, b"Add") + write(7, b""), write(13, place)
    return [write(7, write(1, node)), write(7, write(1, node) + write(5, tensor))]


def notes() -> list[bytes]:
    return [
        msgspec.msgpack.encode(
            {"run": NOTED, "task": envelope.encode(TASK), "manifest": envelope.encode(MANIFEST)}
        )
    ]
