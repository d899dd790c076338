"""Set up TLS for a link, with certificates, and explain failures.

TLS is at least 1.2, and the broker's certificate must contain its name. Under TLS 1.3 a broker
rejects a client's certificate only after the handshake, so `find_refusal` connects again and waits
for the alert.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import ssl
import time
from pathlib import Path

from federated.errors import ConfigError
from federated.system.proxies import open_connection
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "REVOKED",
    "TIMEOUT",
    "dial",
    "explain",
    "find_refusal",
    "make_context",
    "make_private_name",
    "reload",
]

# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
HOSTNAMES = (62, 64)
TIMES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
STRETCHING = 20_000  # rounds of PBKDF2, as in the password file
TIMEOUT = 5.0  # seconds to connect
ALERT = 1.5  # seconds to wait after the handshake for an alert about a certificate

REVOKED = (
    "this client's certificate was revoked; to enrol again, get a token from the operator of the "
    "coordinator (coordinator enroll NAME)"
)
ALERTS = {  # TLS alert of the broker -> its meaning and remedy
    "CERTIFICATE_REVOKED": REVOKED,
    "CERTIFICATE_REQUIRED": "it requires a certificate: enrol this device with edge-agent join "
    "--token, or add ?ca=FILE&cert=FILE",
    "HANDSHAKE_FAILURE": "it and this client support no common TLS settings; if it requires a "
    "certificate, enrol this device with edge-agent join --token",
    "CERTIFICATE_EXPIRED": "according to the broker's clock, this client's certificate or the "
    "broker's revocation list has expired; if edge-agent doctor finds the certificate valid, "
    "restart the coordinator, which renews the list (with your own broker: coordinator authority "
    "--for-broker DIR); otherwise enrol this device again (edge-agent join --token)",
    "UNKNOWN_CA": "the broker does not know the authority that signed this client's certificate; "
    "enrol this device with the coordinator of that broker",
    "BAD_CERTIFICATE": "the broker rejected this client's certificate as malformed; enrol this "
    "device again (edge-agent join --token)",
    "CERTIFICATE_UNKNOWN": "the broker rejected this client's certificate; the broker's log states "
    "the reason, for example an expired revocation list",
    "NO_APPLICATION_PROTOCOL": "it does not offer MQTT by ALPN: if it serves WebSockets, use "
    "wss://, otherwise add ?alpn=NAME with the name from the broker's documentation",
    "PROTOCOL_VERSION": "it supports only old versions of TLS; at least 1.2 is required",
}


class ClosingSocket(ssl.SSLSocket):
    """A socket that closes itself after a failed handshake, because the MQTT library does not."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except ssl.SSLWantReadError:
            raise
        except OSError:
            self.close()
            raise


def dial(address: MqttAddress, timeout: float) -> socket.socket:
    """Open a TCP connection to a broker, through a proxy if the environment names one. Raises
    OSError, ConfigError, MissingExtra.
    """
    return open_connection(address.scheme, address.host, address.port, timeout)


def make_context(address: MqttAddress) -> ssl.SSLContext:
    """Return the TLS context of a link to `address`. Raises ConfigError for missing or invalid
    files.
    """
    for kind, file in (("CA", address.ca), ("certificate", address.cert), ("key", address.key)):
        if file is not None and not Path(file).is_file():
            raise ConfigError(f"{address}: the {kind} file {file} does not exist")
    try:
        context = ssl.create_default_context(cafile=address.ca)
    except OSError as error:  # also SSLError
        raise ConfigError(
            f"{address}: expected CA certificates in PEM format in {address.ca}"
            f"{describe_problem(error)}"
        ) from error
    context.minimum_version, context.sslsocket_class = ssl.TLSVersion.TLSv1_2, ClosingSocket
    if address.alpn:
        context.set_alpn_protocols([address.alpn])
    if address.cert is not None:
        try:
            reload(context, address)
        except OSError as error:  # also SSLError
            where = address.cert if address.key is None else f"{address.cert} and {address.key}"
            raise ConfigError(
                f"{address}: expected a certificate and its private key in PEM format in {where}"
                f"{describe_problem(error)}"
            ) from error
    return context


def describe_problem(error: OSError) -> str:
    """Return why a file of certificates cannot be used, as the end of a sentence. OpenSSL's own
    texts, such as "PEM lib", are left out, except for a key of another certificate.
    """
    if not isinstance(error, ssl.SSLError):
        return f": {error.strerror}"
    mismatch = error.reason == "KEY_VALUES_MISMATCH"
    return ", found the key of another certificate" if mismatch else ", found none"


def reload(context: ssl.SSLContext, address: MqttAddress) -> None:
    """Load the current certificate for the next connection. Raises OSError, including SSLError."""
    if address.cert is not None:
        context.load_cert_chain(address.cert, address.key)


def make_private_name(address: MqttAddress, name: str) -> str:
    """Return a client id that only the holder of the certificate's key or of the password can
    compute; without either, the name itself.

    A broker disconnects a client if another connects with the same id. With an id that others can
    guess, any enrolled device could keep any other offline.
    """
    if address.cert is not None:
        with contextlib.suppress(OSError):
            key = Path(address.key or address.cert).read_bytes()
            return f"{name}-{hashlib.sha256(key + name.encode()).hexdigest()[:16]}"
    elif address.password:
        return f"{name}-{_stretch(address.password, f'{address.user} {name}')}"
    return name


@functools.cache
def _stretch(password: str, salt: str) -> str:
    """Hash a password slowly, since brokers log client ids, which must not reveal it."""
    return hashlib.pbkdf2_hmac(
        "sha512", password.encode(), f"espalier client {salt}".encode(), STRETCHING, 8
    ).hex()


def explain(address: MqttAddress, error: ssl.SSLError) -> str:
    """Explain a failed handshake, with the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in HOSTNAMES:
            return (
                f"its certificate is for {_list_names(address)}, not for '{address.host}': use one "
                "of these, or add it (coordinator authority --host)"
            )
        if error.verify_code in TIMES:
            return (
                f"its {error.verify_message}; this device's clock says "
                f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: set the clock if it is "
                "wrong, otherwise restart the coordinator, which renews the certificate (with your "
                "own broker: coordinator authority --for-broker DIR)"
            )
        return (
            f"its certificate is not trusted ({error.verify_message}): enrol this device "
            f"(edge-agent join --token), or name its authority as {address.scheme}://...?ca=FILE"
        )
    reason = error.reason or ""
    for alert, meaning in ALERTS.items():
        if reason.endswith(alert):
            return meaning
    plain = address.scheme.removesuffix("s")
    return f"this port does not use TLS: use {plain}://, or the port for TLS"


def find_refusal(address: MqttAddress) -> str:
    """Return why a broker's TLS rejects this client; empty if it does not, or does not answer."""
    try:
        with (
            dial(address, TIMEOUT) as plain,
            make_context(address).wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            secure.settimeout(ALERT)
            secure.recv(1)
    except ssl.SSLError as error:
        return "" if isinstance(error, ssl.SSLEOFError) else explain(address, error)
    except OSError:
        pass
    return ""


def _list_names(address: MqttAddress) -> str:
    """Return the names in a broker's certificate, which is trusted except for its name."""
    trusting = make_context(address)
    trusting.check_hostname = False
    try:
        with (
            dial(address, TIMEOUT) as plain,
            trusting.wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            shown = secure.getpeercert() or {}
    except OSError:
        return "other names"
    return ", ".join(str(pair[1]) for pair in shown.get("subjectAltName", ())) or "no name"
