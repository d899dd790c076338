"""Read the packets of an MQTT 3.1.1 client, and check what it may do (OASIS standard, sections 2
and 3). Pure functions of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from federated.errors import Malformed, Refused
from federated.wire import topics

__all__ = [
    "NOT_AUTHORISED",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "Connect",
    "PacketReader",
    "TooLarge",
    "check_connect",
    "check_packet",
    "format_connect",
    "parse_connect",
]

CONNECT, PUBLISH, SUBSCRIBE = 1, 3, 8
# the other packets that a connected client sends, with the flags that the standard demands: PUBACK,
# PUBREC, PUBREL, PUBCOMP, UNSUBSCRIBE, PINGREQ, DISCONNECT
PLAIN = {4: 0, 5: 0, 6: 2, 7: 0, 10: 2, 12: 0, 14: 0}
MQTT_3_1_1 = b"\x00\x04MQTT\x04"
RESERVED, CLEAN, WILL, WILL_QOS, RETAIN, PASSWORD, USER = 0x01, 0x02, 0x04, 0x18, 0x20, 0x40, 0x80
KEEPALIVE = 120  # seconds: the longest keepalive
# answers to CONNECT: with return code 1, 3 and 5
UNSUPPORTED, UNAVAILABLE, NOT_AUTHORISED = (
    b"\x20\x02\x00\x01",
    b"\x20\x02\x00\x03",
    b"\x20\x02\x00\x05",
)


class TooLarge(Malformed):
    """A packet of more bytes than the broker accepts."""


class Packet(NamedTuple):
    """A whole packet.

    kind: number of its type, 1 to 14.
    flags: lower four bits of its first byte.
    body: its bytes after the fixed header.
    raw: all its bytes.
    """

    kind: int
    flags: int
    body: memoryview
    raw: bytes


@dataclass(frozen=True)
class Connect:
    """The content of a CONNECT packet without the client's identifier, which the server chooses.

    flags: of the will and of the session; without those of user and password.
    keepalive: seconds.
    will: topic and payload as in the packet; empty without a will.
    topic: of the will.
    user, password: as sent.
    """

    flags: int
    keepalive: int
    will: bytes
    topic: str
    user: str
    password: str


class PacketReader:
    """Splits a stream of bytes into packets.

    limit: bytes of the largest packet.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._rest = limit, bytearray()

    def read(self, data: bytes) -> Iterator[Packet]:
        """Yield the packets that are complete with these bytes. Raises Malformed, TooLarge."""
        self._rest += data
        while len(self._rest) >= 2:
            length, start = 0, 1
            while True:
                if start == len(self._rest):
                    return
                byte = self._rest[start]
                length |= (byte & 0x7F) << 7 * (start - 1)
                start += 1
                if byte < 0x80:
                    break
                if start > 4:
                    raise Malformed("expected a length of at most four bytes")
            if (size := start + length) > self._limit:
                raise TooLarge(f"a packet has {size} bytes; at most {self._limit} are accepted")
            if len(self._rest) < size:
                return
            raw = bytes(self._rest[:size])
            del self._rest[:size]
            yield Packet(raw[0] >> 4, raw[0] & 0x0F, memoryview(raw)[start:], raw)


class Fields:
    """Reads the fields of a packet's body. Raises Malformed where the body ends too early."""

    def __init__(self, body: memoryview) -> None:
        self._body, self.place = body, 0

    @property
    def left(self) -> int:
        return len(self._body) - self.place

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise Malformed("a packet ends too early")
        self.place += size
        return bytes(self._body[self.place - size : self.place])

    def take_number(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def take_text(self) -> str:
        raw = self.take(self.take_number())
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Malformed("expected UTF-8") from error
        if "\0" in text:
            raise Malformed("a text contains NUL")
        return text


def parse_connect(packet: Packet) -> Connect | None:
    """Parse the first packet of a connection; None for another version of MQTT. Raises
    Malformed.
    """
    fields = Fields(packet.body)
    if packet.kind != CONNECT or packet.flags:
        raise Malformed("expected CONNECT as the first packet")
    if fields.left < len(MQTT_3_1_1) or fields.take(len(MQTT_3_1_1)) != MQTT_3_1_1:
        return None
    flags, keepalive = fields.take(1)[0], fields.take_number()
    if flags & RESERVED or flags & WILL_QOS == WILL_QOS:
        raise Malformed("CONNECT has invalid flags")
    if not flags & WILL and flags & (WILL_QOS | RETAIN):
        raise Malformed("CONNECT has flags of a will, but no will")
    fields.take_text()  # the identifier
    topic, start = "", fields.place
    if flags & WILL:
        topic = fields.take_text()
        fields.take(fields.take_number())
    will = bytes(packet.body[start : fields.place])
    user = fields.take_text() if flags & USER else ""
    password = fields.take_text() if flags & PASSWORD else ""
    if fields.left:
        raise Malformed("CONNECT is longer than its fields")
    kept = flags & (CLEAN | WILL | WILL_QOS | RETAIN)
    return Connect(kept, keepalive, will, topic, user, password)


def check_connect(connect: Connect, run: str, agent: str) -> None:
    """Check the keepalive and the will of an agent of a run. Raises Refused."""
    if not 0 < connect.keepalive <= KEEPALIVE:
        raise Refused(f"expected a keepalive of 1 to {KEEPALIVE} s, found {connect.keepalive}")
    if connect.flags & WILL:
        check_topic(run, agent, "write", connect.topic)


def format_connect(
    connect: Connect, identifier: str, user: str | None, password: str | None
) -> bytes:
    """Return a CONNECT packet for the broker, with this identifier, user and password."""
    flags = connect.flags | (USER if user is not None else 0)
    flags |= PASSWORD if password is not None else 0
    texts = [pack_text(text) for text in (user, password) if text is not None]
    body = b"".join(
        [
            MQTT_3_1_1,
            struct.pack(">BH", flags, connect.keepalive),
            pack_text(identifier),
            connect.will,
            *texts,
        ]
    )
    return bytes([CONNECT << 4]) + pack_length(len(body)) + body


def check_packet(packet: Packet, run: str, agent: str) -> None:
    """Check a packet of a connected agent of a run. Raises Malformed; Refused without the right."""
    fields = Fields(packet.body)
    if packet.kind == PUBLISH:
        topic = fields.take_text()
        if not topic or "+" in topic or "#" in topic:
            raise Malformed("expected a topic without wildcards in PUBLISH")
        check_topic(run, agent, "write", topic)
    elif packet.kind == SUBSCRIBE and packet.flags == 2:
        fields.take_number()
        while fields.left:
            check_topic(run, agent, "read", fields.take_text())
            fields.take(1)
    elif PLAIN.get(packet.kind) != packet.flags:
        raise Malformed(f"expected no packet of type {packet.kind} with flags {packet.flags}")


def check_topic(run: str, agent: str, access: Literal["read", "write"], topic: str) -> None:
    if not topics.permits(run, agent, access, topic):
        verb = "publish on" if access == "write" else "subscribe to"
        raise Refused(f"'{agent}' may not {verb} {topic[:60]} in run '{run}'")


def pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def pack_length(length: int) -> bytes:
    made = bytearray()
    while True:
        length, byte = divmod(length, 128)
        made.append(byte | (0x80 if length else 0))
        if not length:
            return bytes(made)
