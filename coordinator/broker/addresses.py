"""Addresses and ports of this machine to listen at, and what others call them."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket

from federated.errors import ConfigError, LinkError

__all__ = ["UNGIVEN", "check_exposure", "free_port", "own_address", "reachable"]

UNGIVEN = range(20_000, 32_000)  # below the ports that Linux and BSD give to outgoing connections


def check_exposure(listen: str, *, known: bool, embedded: bool = False) -> None:
    """Raises ConfigError for a broker that strangers could use, and for an invalid address.

    known: whether clients must prove who they are. embedded: whether it is the embedded broker,
    which cannot ask them to.
    """
    try:
        loopback = listen == "localhost" or ipaddress.ip_address(listen).is_loopback
    except ValueError:
        raise ConfigError(
            f"broker.listen: expected an IP address or localhost, found '{listen}'"
        ) from None
    if not loopback and embedded:
        raise ConfigError(
            f"broker.listen = '{listen}': the embedded broker listens on loopback only: "
            "use mosquitto (apt install mosquitto)"
        )
    if not loopback and not known:
        raise ConfigError(
            f"broker.listen = '{listen}' opens the broker to the network, where anyone "
            "could take part: let in only devices that were "
            "enrolled by --tls, or who knows a line of a file user:password by "
            "--passwords, or use a broker of your own by --broker"
        )


def free_port(listen: str, port: int) -> int:
    """`port`, if it can be bound; for 0 a free one that no outgoing connection is given before the
    broker takes it.
    """
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    for candidate in [port] if port else [secrets.choice(UNGIVEN) for _ in range(20)]:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((listen, candidate))
                return candidate
            except OSError as error:
                failed = _unbound(listen, candidate, error)
    raise failed


def _unbound(listen: str, port: int, error: OSError) -> ConfigError | LinkError:
    if error.errno == errno.EADDRINUSE:
        return LinkError(
            f"port {port} of {listen} is in use: if a broker runs there, use it by "
            f"--broker {listen}:{port}; else choose another by --port"
        )
    if error.errno == errno.EACCES:
        return LinkError(
            f"port {port} may not be used by this user: choose one above 1023 by --port"
        )
    return ConfigError(f"broker.listen = '{listen}': no address of this machine ({error.strerror})")


def reachable(listen: str) -> tuple[str, str]:
    """The host to connect to from here and from elsewhere, as addresses spell it."""
    if listen in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        return ("127.0.0.1" if listen == "0.0.0.0" else "[::1]"), own_address(listen)  # noqa: S104
    host = f"[{listen}]" if ":" in listen else listen
    return host, host


def own_address(listen: str) -> str:
    """This machine's address on the way to the world, which others in its network can most likely
    reach; its name where there is no network.
    """
    family, world = (
        (socket.AF_INET6, "2001:db8::1") if ":" in listen else (socket.AF_INET, "192.0.2.1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((world, 9))  # a datagram socket sends nothing by this
        host = str(probe.getsockname()[0])
        return f"[{host}]" if ":" in host else host
    return socket.gethostname()
