"""Open a link to a broker, of the kind that the scheme of its address selects.

A scheme is a name in LINKS, the name of an entry point in the group `espalier.links`, or
`module:function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from federated.errors import LinkError
from federated.runtime.extension_errors import (
    check_declares,
    check_parameters,
    find,
    report_failure,
)
from federated.wire.link import Link, LinkOpener, Will, get_scheme
from federated.wire.links.memory import open_memory_link
from federated.wire.links.mqtt import MqttLink
from models.extension_lookup import ExtensionPoint

__all__ = ["LINKS", "find_opener", "open_link"]

POINT = ExtensionPoint("broker address scheme", "espalier.links")


LINKS: Mapping[str, LinkOpener] = {
    "memory": open_memory_link,
    "mqtt": MqttLink,
    "mqtts": MqttLink,
    "ws": MqttLink,
    "wss": MqttLink,
}


def open_link(address: str, client_id: str, will: Will | None = None) -> Link:
    """Open a link to the broker at an address such as `HOST`, `wss://HOST` or `memory://NAME`.

    client_id: name of this client, unique at the broker.
    will: topic and payload that the broker publishes, retained, if this link ends without `close`.
    Raises UsageError for an unknown scheme or an invalid address, ConfigError for a scheme whose
    package cannot be loaded or is not a link, LinkError if it cannot connect.
    """
    scheme, connect = get_scheme(address), find_opener(address)
    own = scheme not in LINKS
    with report_failure(POINT.noun, scheme) if own else nullcontext():
        try:
            link = connect(address, client_id, will)
        except OSError as error:
            place = address.rpartition("://")[2].rpartition("@")[2]  # without user and password
            raise LinkError(f"cannot connect to {scheme}://{place}: {error}") from error
    if own:
        check_declares(POINT.noun, scheme, link, Link)
    return link


def find_opener(address: str) -> LinkOpener:
    """Return the function that opens the links of an address. Raises Unknown, ConfigError."""
    scheme = get_scheme(address)
    connect = find(POINT, scheme, LINKS)
    if scheme not in LINKS:
        check_parameters(POINT.noun, scheme, connect, "address", "client_id", "will")
    return connect
