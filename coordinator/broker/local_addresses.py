"""Choose and check the address at which a broker on this machine listens, and find the addresses at
which others reach it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
import time

from federated.errors import ConfigError, LinkError
from federated.flag_and_argument_names import BROKER, PASSWORDS, PORT, TLS, Option

__all__ = ["check_exposure", "find_free_port", "find_own_address", "find_reachable_hosts"]

OWN_PORTS = range(20_000, 32_000)  # below the ports that Linux and BSD use for outgoing connections
# a broker whose parent was killed is killed with it, and may hold its port while that restarts
RELEASE_WAIT = 3.0  # seconds


def check_exposure(listen: str, *, known: bool, embedded: bool = False) -> None:
    """Raise ConfigError for a broker that strangers could use, or for an invalid address.

    known: whether clients are authenticated. embedded: whether it is the embedded broker, which
    cannot authenticate them.
    """
    try:
        loopback = listen == "localhost" or ipaddress.ip_address(listen).is_loopback
    except ValueError:
        raise ConfigError.naming(
            lambda spell: (
                "broker.listen: expected an IP address or localhost, without a port, found "
                f"'{listen}': set the port with {spell(PORT)}"
            )
        ) from None
    if not loopback and embedded:
        raise ConfigError(
            f"broker.listen = '{listen}': the embedded broker listens on loopback only; "
            "use mosquitto (apt install mosquitto)"
        )
    if not loopback and not known:
        raise ConfigError.naming(
            lambda spell: (
                f"broker.listen = '{listen}' exposes the broker to the network without "
                f"authentication: use {spell(TLS)} (enrolled devices only), {spell(PASSWORDS)} "
                f"(lines of user:password), or your own broker with {spell(BROKER)}"
            )
        )


def find_free_port(listen: str, port: int) -> int:
    """Return `port` if it can be bound within `RELEASE_WAIT`. For 0, return a free port that the
    system does not give to an outgoing connection before the broker binds it. Raises LinkError,
    ConfigError.
    """
    end = time.monotonic() + RELEASE_WAIT
    while True:
        candidate = port or secrets.choice(OWN_PORTS)
        try:
            _check_bind(listen, candidate)
            return candidate
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise _explain_bind(listen, candidate, error) from None
        if port:
            time.sleep(0.05)


def _check_bind(listen: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((listen, port))


def _explain_bind(listen: str, port: int, error: OSError) -> ConfigError | LinkError:
    if error.errno == errno.EADDRINUSE:
        there = Option(f"--broker {listen}:{port}", f'broker="{listen}:{port}"')
        return LinkError.naming(
            lambda spell: (
                f"port {port} of {listen} is in use: if a broker runs there, use it with "
                f"{spell(there)}; otherwise choose another port with {spell(PORT)}"
            )
        )
    if error.errno == errno.EACCES:
        return LinkError.naming(
            lambda spell: (
                f"this user may not bind port {port}: choose one above 1023 with {spell(PORT)}"
            )
        )
    return ConfigError(
        f"broker.listen = '{listen}': not an address of this machine ({error.strerror})"
    )


def find_reachable_hosts(listen: str) -> tuple[str, str]:
    """Return the hosts to connect to from this machine and from others."""
    if listen in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        loopback = "127.0.0.1" if listen == "0.0.0.0" else "[::1]"  # noqa: S104
        return loopback, find_own_address(listen)
    host = f"[{listen}]" if ":" in listen else listen
    return host, host


def find_own_address(listen: str) -> str:
    """Return this machine's address on its default route, which others in its network can most
    likely reach; without a network, its host name.
    """
    family, world = (
        (socket.AF_INET6, "2001:db8::1") if ":" in listen else (socket.AF_INET, "192.0.2.1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((world, 9))  # connecting a datagram socket sends nothing
        host = str(probe.getsockname()[0])
        return f"[{host}]" if ":" in host else host
    return socket.gethostname()
