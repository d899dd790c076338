"""Disconnect clients of mosquitto through its dynamic-security plugin.

Mosquitto ends no connection when it reloads its files of rights and revoked certificates. The
plugin disconnects all clients of a user name when the user is disabled, so a user is created,
disabled and deleted. The plugin knows no other users and grants no rights.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from federated.errors import LinkError
from federated.runtime import atomic_files
from federated.wire import topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link

__all__ = ["configure_plugin", "disconnect_users", "find_plugin"]

PLUGIN = "mosquitto_dynamic_security.so"
FOLDERS = "lib", "lib64", "lib/*"  # where plugins are, next to the folder `bin` or `sbin`
ANSWER = 10.0  # seconds for the plugin's answer
AT_ONCE = 50  # users per message: a thousand may take the plugin longer than ANSWER
FILE = "dynamic-security.json"
EMPTY: dict[str, object] = {"defaultACLAccess": {}, "clients": [], "groups": [], "roles": []}


def find_plugin(program: str) -> Path | None:
    """Return the plugin that was installed with a mosquitto program."""
    root = Path(program).resolve().parent.parent
    return next((path for folder in FOLDERS for path in root.glob(f"{folder}/{PLUGIN}")), None)


def configure_plugin(plugin: Path, folder: Path) -> list[str]:
    """Write the plugin's own configuration into `folder`, and return the lines of mosquitto's
    configuration that load the plugin.
    """
    atomic_files.write(folder / FILE, json.dumps(EMPTY).encode())
    return [f"plugin {plugin}", f"plugin_opt_config_file {(folder / FILE).resolve()}"]


def disconnect_users(url: str, names: Iterable[str]) -> None:
    """Disconnect all clients with these user names. Withdraw their rights first, since they may
    reconnect. Raises LinkError.

    url: of the broker, with the coordinator's credentials.
    """
    users = sorted(names)
    with closing(open_link(url, f"disconnect-{os.getpid()}-{secrets.token_hex(4)}")) as link:
        link.subscribe(topics.dynamic_security_answer())
        for first in range(0, len(users), AT_ONCE):
            commands = [
                {"command": command, "username": user}
                for user in users[first : first + AT_ONCE]
                for command in ("createClient", "disableClient", "deleteClient")
            ]
            link.publish(topics.dynamic_security(), json.dumps({"commands": commands}).encode())
            _check_answer(link)


def _check_answer(link: Link) -> None:
    """Raise LinkError unless the plugin disabled every user."""
    until, delivery = time.monotonic() + ANSWER, None
    while delivery is None or delivery.topic != topics.dynamic_security_answer():
        if time.monotonic() > until:
            raise LinkError(f"mosquitto's {PLUGIN} did not answer within {ANSWER:.0f} s")
        delivery = link.receive(0.1)
    try:
        answers = json.loads(delivery.payload)["responses"]
        errors = [
            str(answer["error"])
            for answer in answers
            # an interrupted call may have left the user behind, so that it exists
            if "error" in answer and answer["command"] != "createClient"
        ]
    except (ValueError, TypeError, KeyError):
        errors = [f"expected a JSON object with 'responses', found {delivery.payload[:100]!r}"]
    if errors:
        raise LinkError(f"mosquitto's {PLUGIN}: {errors[0]}")
