import socket
import struct

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import MalformedPacket, Properties

from federated.wire.links.paho_client import AHEAD, QUICKACK, PahoClient
from federated.wire.mqtt_address import parse_mqtt_address

BIG = bytes(range(256)) * (AHEAD // 256 + 1)
TOPIC = "fl/topic"


def pack(payload: bytes, qos: int, properties: bytes) -> bytearray:
    """Return a packet with a message, without its fixed header (MQTT 5, section 3.3)."""
    identifier = struct.pack("!H", 7) if qos else b""
    topic = struct.pack("!H", len(TOPIC)) + TOPIC.encode()
    return bytearray(topic + identifier + properties + payload)


class Reader(PahoClient):
    """A client without a connection that is given packets."""

    def __init__(self, version: int) -> None:
        super().__init__(
            parse_mqtt_address("mqtt://localhost"), protocol=MQTTProtocolVersion(version)
        )
        self.read: list[mqtt.MQTTMessage] = []
        self.on_message = lambda client, _, message: self.read.append(message)

    def take(self, packet: bytearray, qos: int) -> MQTTErrorCode:
        self._in_packet["command"] = 0x30 | qos << 1
        self._in_packet["packet"] = packet
        return self._packet_handle()


def make_properties() -> bytes:
    """Return packed properties whose length takes two bytes."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("key", "v" * 200)]
    packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
    assert packed[0] >= 0x80
    return packed


@pytest.mark.parametrize("payload", [b"", b"short", BIG])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("version", "properties"),
    [(mqtt.MQTTv311, b""), (mqtt.MQTTv5, b"\0"), (mqtt.MQTTv5, make_properties())],
)
def test_a_message_of_any_size_is_read(
    version: int, properties: bytes, qos: int, payload: bytes
) -> None:
    reader = Reader(version)
    reader.take(pack(payload, qos, properties), qos)
    assert [(one.topic, one.payload, one.qos) for one in reader.read] == [(TOPIC, payload, qos)]


def test_a_large_message_with_a_malformed_header_is_rejected_and_the_next_one_is_read() -> None:
    reader = Reader(mqtt.MQTTv5)
    for malformed in (
        bytearray(b"\xff\xff") + BIG,  # a longer topic than the packet
        pack(BIG, 0, b"\xff\xff\xff\xff\xff"),  # a length of five bytes
        pack(BIG, 0, b"\xff\xff\xff\x7f"),  # more properties than bytes
    ):
        with pytest.raises(MalformedPacket):
            reader.take(malformed, 0)
    reader.take(pack(b"short", 0, b"\0"), 0)
    assert [one.payload for one in reader.read] == [b"short"]


def test_the_rest_of_a_packet_is_sent_without_a_copy() -> None:
    reader = Reader(mqtt.MQTTv5)
    packet = bytearray(BIG)
    reader._packet_queue(0x30, packet, 1, 0)
    queued = reader._out_packet[0]["packet"]
    assert isinstance(queued, memoryview)
    assert queued[5:].obj is packet


@pytest.mark.skipif(QUICKACK is None, reason="only Linux has this option")
def test_received_packets_are_acknowledged_at_once() -> None:
    assert QUICKACK is not None
    reader = Reader(mqtt.MQTTv5)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as own,
        server.accept()[0] as broker,
    ):
        own.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
        assert own.getsockopt(socket.IPPROTO_TCP, QUICKACK) == 0
        reader._sock = reader._made = own
        broker.sendall(b"\xd0\0")  # PINGRESP
        assert reader.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS
        assert own.getsockopt(socket.IPPROTO_TCP, QUICKACK) == 1
        reader._sock = None
