"""The examples of messages in docs/protocol.md can be decoded by that page alone: this test uses
none of the project's code, as a client in another language.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

TEXT = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
SECTION = TEXT.partition("\n## Examples\n")[2].partition("\n## Messages\n")[0]
PROFILE, TASK, META = map(json.loads, re.findall(r"```json\n(.*?)```", SECTION, re.DOTALL))
PAYLOADS = [bytes.fromhex(one) for one in re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL)]


def open_envelope(payload: bytes, kind: str) -> dict[str, Any]:
    message: dict[str, Any] = msgpack.unpackb(payload)
    assert (message["v"], message["kind"]) == (3, kind)
    return message


def test_the_body_and_the_checksum_of_the_task_are_as_described() -> None:
    message = open_envelope(PAYLOADS[0], "task")
    assert message["body"] == TASK
    packed = msgpack.packb(message["body"])
    assert packed in PAYLOADS[0], "the body as it was sent"
    assert message["crc32"] == zlib.crc32(f"task {message['epoch']}".encode() + packed)
    assert f"epoch {message['epoch']}" in SECTION


def test_the_chunk_holds_the_update_that_answers_the_task() -> None:
    message = open_envelope(PAYLOADS[1], "chunk")
    assert message.keys() == {"v", "kind", "body"}
    chunk = message["body"]
    data = chunk["data"]
    assert (chunk["index"], chunk["total"], chunk["size"]) == (0, 1, len(data))
    assert chunk["crc32"] == zlib.crc32(data)
    assert hashlib.sha256(data).hexdigest() in SECTION
    assert f"/up/{chunk['transfer']}/c/0`" in SECTION
    magic, version, zero, length = struct.unpack("<4sHHQ", data[:16])
    assert (magic, version, zero) == (b"ESPL", 1, 0)
    header = msgpack.unpackb(data[16 : 16 + length])
    assert header["meta"] == META
    values = data[-(-(16 + length) // 64) * 64 :]
    tensors = {
        name: np.frombuffer(values, "<f4", int(np.prod(shape)), offset).reshape(shape).tolist()
        for name, _, shape, offset in header["tensors"]
    }
    assert json.dumps(tensors) in SECTION


def test_the_update_and_the_profile_fit_the_task() -> None:
    for field in ("run", "round", "attempt", "agent", "work", "submodel", "version"):
        assert META[field] == TASK[field]
    assert 1 <= META["samples"] <= PROFILE["data"]["examples"]
    assert META["steps"] == -(-META["samples"] // TASK["recipe"]["batch"])
    assert [one["submodel"] for one in PROFILE["timings"]] == [TASK["submodel"]]
    assert TASK["codec"] in PROFILE["codecs"]
