"""Packets of MQTT 3.1.1 are split at any byte, and an agent does only what it may do."""

from __future__ import annotations

import pytest

from coordinator.phones.mqtt_packets import (
    PacketReader,
    TooLarge,
    check_connect,
    check_packet,
    format_connect,
    pack_length,
    pack_text,
    parse_connect,
)
from federated.errors import Malformed, Refused

STATUS = "fl/v1/r/agent/ann/status"


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + pack_length(len(body)) + body


def connect(flags: int, *fields: bytes, keepalive: int = 60, level: int = 4) -> bytes:
    head = b"\x00\x04MQTT" + bytes([level, flags]) + keepalive.to_bytes(2, "big")
    return packet(0x10, head + b"".join(fields))


def read(data: bytes) -> object:
    (found,) = PacketReader(1000).read(data)
    return found


# will, QoS 1, retained, clean session, user and password
FULL = connect(0xEE, *(pack_text(t) for t in ("mine", STATUS, "gone", "ann", "secret")))


def test_packets_are_split_at_any_byte() -> None:
    stream = FULL + packet(0x30, pack_text(STATUS) + bytes(200)) + b"\xc0\x00"
    whole = [one.raw for one in PacketReader(1000).read(stream)]
    assert b"".join(whole) == stream
    assert len(whole) == 3
    reader = PacketReader(1000)
    assert [p.raw for i in range(len(stream)) for p in reader.read(stream[i : i + 1])] == whole


def test_a_packet_over_the_limit_is_rejected_at_its_header() -> None:
    assert len(list(PacketReader(203).read(packet(0x30, bytes(200))))) == 1
    with pytest.raises(TooLarge, match="203"):
        list(PacketReader(202).read(packet(0x30, bytes(200))[:3]))
    with pytest.raises(Malformed, match="four"):
        list(PacketReader(1000).read(b"\x30\xff\xff\xff\xff\xff"))


def test_connect_gets_another_identifier_and_other_credentials() -> None:
    asked = parse_connect(read(FULL))  # type: ignore[arg-type]
    assert asked is not None
    assert (asked.user, asked.password, asked.topic, asked.keepalive) == (
        "ann",
        "secret",
        STATUS,
        60,
    )
    check_connect(asked, "r", "ann")
    made = parse_connect(read(format_connect(asked, "new", "boss", "word")))  # type: ignore[arg-type]
    assert made is not None
    assert (made.user, made.password, made.will) == ("boss", "word", asked.will)
    assert b"mine" not in format_connect(asked, "new", None, None)
    bare = parse_connect(read(format_connect(asked, "new", None, None)))  # type: ignore[arg-type]
    assert bare is not None
    assert (bare.user, bare.password, bare.topic) == ("", "", STATUS)


def test_another_version_of_mqtt_is_recognised() -> None:
    assert parse_connect(read(connect(2, b"\x00", pack_text("a"), level=5))) is None  # type: ignore[arg-type]
    old = packet(0x10, b"\x00\x06MQIsdp\x03\x02\x00\x3c" + pack_text("a"))
    assert parse_connect(read(old)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        packet(0x30, pack_text(STATUS)),  # not CONNECT
        connect(0x03, pack_text("a")),  # a reserved flag
        connect(0x1E, pack_text("a"), pack_text(STATUS), pack_text("x")),  # QoS 3 of the will
        connect(0x22, pack_text("a")),  # a retained will without a will
        connect(0x82, pack_text("a")),  # no user
        connect(0x02, pack_text("a"), b"more"),
        connect(0x82, pack_text("a"), b"\x00\x02\xff\xff"),  # not UTF-8
        connect(0x82, pack_text("a"), pack_text("a\0b")),
    ],
)
def test_a_malformed_connect_is_rejected(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_connect(read(data))  # type: ignore[arg-type]


@pytest.mark.parametrize("keepalive", [0, 121])
def test_the_keepalive_is_limited(keepalive: int) -> None:
    asked = parse_connect(read(connect(2, pack_text("a"), keepalive=keepalive)))  # type: ignore[arg-type]
    assert asked is not None
    with pytest.raises(Refused, match="keepalive"):
        check_connect(asked, "r", "ann")


def test_a_foreign_will_is_refused() -> None:
    asked = parse_connect(read(FULL))  # type: ignore[arg-type]
    assert asked is not None
    with pytest.raises(Refused, match="bob"):
        check_connect(asked, "r", "bob")


def subscribe(*filters: str) -> bytes:
    return packet(0x82, b"\x00\x01" + b"".join(pack_text(f) + b"\x01" for f in filters))


@pytest.mark.parametrize(
    "data",
    [
        packet(0x33, pack_text(STATUS) + b"\x00\x01online"),
        packet(0x30, pack_text("fl/v1/r/agent/ann/up/t/c/0") + b"chunk"),
        subscribe("fl/v1/r/run", "fl/v1/r/cmd/ann", "fl/v1/r/cmd/all", STATUS),
        subscribe("fl/v1/r/model/0/w1/c/+"),
        packet(0x62, b"\x00\x01"),
        packet(0xA2, b"\x00\x01" + pack_text("anything")),
        b"\xc0\x00",
        b"\xe0\x00",
    ],
)
def test_an_agent_does_what_it_may(data: bytes) -> None:
    check_packet(read(data), "r", "ann")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        packet(0x30, pack_text("fl/v1/r/agent/bob/status")),
        packet(0x30, pack_text("fl/v1/r/cmd/ann")),
        packet(0x30, pack_text("$CONTROL/dynamic-security/v1")),
        subscribe("fl/v1/r/cmd/ann", "fl/v1/r/cmd/bob"),
        packet(0x30, pack_text("fl/v1/other/agent/ann/up/t/c/0") + b"chunk"),
        subscribe("fl/v1/other/model/#"),
        subscribe("fl/v1/+/run"),
        subscribe("#"),
        subscribe("fl/v1/r/cmd/+"),
        subscribe("fl/v1/#"),
        subscribe("fl/v1/r/infer/ann/ask/#"),
        subscribe("fl/v1/r/agent/+/status"),
        subscribe("$share/g/fl/v1/r/run"),
        subscribe("$SYS/#"),
    ],
)
def test_an_agent_does_nothing_else(data: bytes) -> None:
    with pytest.raises(Refused, match="may not"):
        check_packet(read(data), "r", "ann")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        FULL,  # a second CONNECT
        packet(0x30, pack_text("")),
        packet(0x30, pack_text("fl/v1/r/agent/ann/+")),
        packet(0x80, b"\x00\x01" + pack_text(STATUS) + b"\x00"),
        packet(0x82, b"\x00\x01" + pack_text(STATUS)),
        b"\x20\x02\x00\x00",
        b"\xf0\x00",
        b"\x00\x00",
    ],
)
def test_a_packet_that_no_client_sends_is_rejected(data: bytes) -> None:
    with pytest.raises(Malformed):
        check_packet(read(data), "r", "ann")  # type: ignore[arg-type]
