"""The client of the MQTT library (paho), which connects in our way and receives faster."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from federated.system.connection_deadline import ConnectionDeadline
from federated.wire import tls
from federated.wire.mqtt_address import MqttAddress

__all__ = ["PahoClient"]

AHEAD = 16 << 10  # bytes that are read at once, unless more are expected
QOS = 0x06  # bits of a packet's first byte
QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


class PahoClient(mqtt.Client):
    """A client that opens its connections with `tls.dial`, and takes messages apart itself.

    The library supports proxies with another library only, and uses them also for hosts that
    `no_proxy` names with their port. It copies a message five times to take it apart, and the rest
    of a packet each time that it sends a part. It reads the first bytes of a packet one by one, and
    waits for the other threads after each.

    address: of the broker.
    """

    def __init__(self, address: MqttAddress, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, **options)
        self._address = address
        self._deadline = ConnectionDeadline(0.0)  # of the present attempt
        self._made: socket.socket | None = None  # its socket
        self._unread = b""  # bytes that were read ahead

    # ---- connecting ------------------------------------------------------------------------------

    def _create_socket_connection(self) -> socket.socket:
        self._made = made = tls.dial(self._address, self._deadline.left)
        self._deadline.watch(made)
        return made

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        self._made = made = super()._ssl_wrap_socket(tcp_sock)
        return made

    def _create_socket(self) -> Any:
        """Connect. An answer for WebSockets that the library cannot parse is a lost connection:
        other errors would end the network thread.
        """
        self._unread = b""
        try:
            with ConnectionDeadline(self.connect_timeout) as self._deadline:
                return super()._create_socket()
        except BaseException as error:
            if self._made is not None:  # the library leaves it open
                self._made.close()
            # some errors of TLS are both
            if isinstance(error, ValueError | IndexError) and not isinstance(error, OSError):
                raise ConnectionError(f"invalid answer: {error}") from error
            raise

    def limit_in_flight(self, most: int) -> None:
        """Limit the unacknowledged messages; the library does so only before it connects."""
        self._max_inflight_messages = most

    # ---- messages --------------------------------------------------------------------------------

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read packets, and let the system acknowledge them at once. A broker that uses Nagle's
        algorithm, as rumqttd does, holds its next small packet back until then, and by default a
        system waits 40 ms for data to send along.
        """
        result = super().loop_read(max_packets)
        while self._unread and not result:  # of which `select` knows nothing
            result = super().loop_read(max_packets)
        if QUICKACK is not None and self._made is not None:
            with contextlib.suppress(OSError):  # it is closed
                self._made.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
        return result

    def _sock_recv(self, bufsize: int) -> bytes:
        """Read from the socket, ahead of what is expected unless it is a WebSocket, which keeps
        its own buffer.
        """
        if not self._unread:
            if bufsize >= AHEAD or self._transport != "tcp":
                return super()._sock_recv(bufsize)
            self._unread = super()._sock_recv(AHEAD)
        data, self._unread = self._unread[:bufsize], self._unread[bufsize:]
        return data

    def _packet_queue(self, command: int, packet: Any, *others: Any, **named: Any) -> MQTTErrorCode:
        """Queue a packet as a view: the library slices off what it sent, which copies a packet, but
        not a view.
        """
        view: Any = memoryview(packet)
        return super()._packet_queue(command, view, *others, **named)

    def _handle_publish(self) -> MQTTErrorCode:
        """Handle a message. The library takes others apart: malformed ones, and those with QoS 2,
        which no peer sends.
        """
        packet, command = self._in_packet["packet"], self._in_packet["command"]
        qos, topic_end = (command & QOS) >> 1, 2 + int.from_bytes(packet[:2], "big")
        start = self._find_payload(packet)
        if qos > 1 or start > len(packet) or topic_end == 2 or self.on_message is None:
            return super()._handle_publish()
        # its constructor would make a lock, which only messages that are sent need
        message = mqtt.MQTTMessage.__new__(mqtt.MQTTMessage)
        message.topic = bytes(packet[2:topic_end])
        message.mid = int.from_bytes(packet[topic_end : topic_end + 2], "big") if qos else 0
        message.qos, message.retain, message.dup = qos, bool(command & 1), bool(command & 8)
        with memoryview(packet) as view:
            message.payload = bytes(view[start:])
        with self._in_callback_mutex:
            self.on_message(self, self._userdata, message)
        return self._send_puback(message.mid) if qos else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _find_payload(self, packet: bytearray) -> int:
        """Return where the payload of a message begins (MQTT 5, section 3.3), behind properties,
        which have no meaning here; beyond the end of a malformed packet.
        """
        start = 2 + int.from_bytes(packet[:2], "big")  # the topic
        start += 2 if self._in_packet["command"] & QOS else 0  # the packet's identifier
        if self._protocol == mqtt.MQTTv5:
            length = 0  # of the properties, in up to four bytes with seven bits each
            for index, byte in enumerate(packet[start : start + 4]):
                length |= (byte & 0x7F) << (7 * index)
                if byte < 0x80:
                    return start + index + 1 + length
            return len(packet) + 1
        return start
