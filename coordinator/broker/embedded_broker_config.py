"""Configure the embedded broker, which replaces mosquitto where that is not installed: rumqttd in a
process of its own, from the wheels of the package iotcore.

It listens on loopback only, because it has neither an access control list nor hashed passwords, and
it keeps nothing on disk. Its limits were measured with iotcore 0.4 (docs/broker.md). It logs the
messages of each subscribed pattern and drops them only by size, so the sizes below bound the memory
of a pattern. The many patterns of weights, releases and commands get small logs: weights and
releases are retained anyway, and commands are repeated.
"""

from __future__ import annotations

import sys
from importlib import metadata, util
from pathlib import Path

from federated.errors import MissingExtra
from federated.wire import topics

__all__ = ["describe", "prepare"]

# bytes and count: together more than the chunks that all upload slots may have in flight
SEGMENT, SEGMENTS = 4 << 20, 12
SMALL, FEW = 128 << 10, 2
SMALLEST = 1 << 10  # bytes: the smallest segment that rumqttd accepts
CONNECTIONS = 10_000


def describe() -> str:
    """Return the broker's name and version."""
    return f"rumqttd (iotcore {metadata.version('iotcore')})"


def prepare(listen: str, port: int, folder: Path, max_packet: int) -> list[str]:
    """Write the configuration into `folder`; return the command that runs the broker. max_packet:
    largest packet, bytes. Raises MissingExtra.
    """
    if util.find_spec("iotcore") is None:
        raise MissingExtra("the embedded broker", "coordinator", "iotcore")
    host = "127.0.0.1" if listen == "localhost" else f"[{listen}]" if ":" in listen else listen
    file = folder / "embedded.toml"
    file.write_text(format_configuration(f"{host}:{port}", max_packet))
    # The variable makes glibc return the memory of large messages at once; otherwise it keeps twice
    # as much. -P: a folder named iotcore in the working directory must not shadow the package.
    # Below CRITICAL, rumqttd logs every packet.
    return [
        "env",
        "MALLOC_MMAP_THRESHOLD_=65536",
        sys.executable,
        "-P",
        "-m",
        "iotcore",
        "--config",
        str(file),
        "--log-level",
        "CRITICAL",
    ]


def format_configuration(address: str, max_packet: int) -> str:
    """Return the broker's configuration in TOML. It speaks MQTT 3.1.1, because with MQTT 5 it drops
    the session of a client whose connection breaks.
    """
    sizes = {
        **dict.fromkeys(topics.retained_patterns(), (SMALLEST, 1)),
        topics.all_commands(): (SMALL, FEW),
    }
    logs = "".join(
        f"[router.custom_segment.'{pattern}']\nmax_segment_size = "
        f"{size}\nmax_segment_count = {count}\n"
        for pattern, (size, count) in sizes.items()
    )
    return f"""\
id = 0
[router]
id = 0
max_connections = {CONNECTIONS}
max_outgoing_packet_count = 200
max_segment_size = {SEGMENT}
max_segment_count = {SEGMENTS}
{logs}[v4.1]
name = "mqtt-3.1.1"
listen = "{address}"
next_connection_delay_ms = 1
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = {max_packet}
max_inflight_count = 100
dynamic_filters = true
"""
