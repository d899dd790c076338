"""TLS of a link: what a client trusts and shows, and what a refusal means to a person.

Never below TLS 1.2, never without the broker's name being in its certificate. Under TLS 1.3 a
broker refuses a client's certificate only after the client believes to be connected: `refusal` asks
once more and waits for that word.
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
from federated.wire.address import Address

__all__ = ["REVOKED", "context", "explain", "private_name", "refusal", "reload"]

# OpenSSL's numbers of what does not match: X509_V_ERR_HOSTNAME_MISMATCH,
# X509_V_ERR_IP_ADDRESS_MISMATCH
HOSTNAMES = (62, 64)
TIMES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
STRETCHING = 20_000  # rounds of PBKDF2, as in the file of passwords
WORD = 1.5  # seconds that a broker's word about a certificate may take after the handshake

REVOKED = (
    "this client's certificate was revoked: who runs the coordinator can give a token for a new "
    "one (coordinator enroll NAME)"
)
ALERTS = {  # what the broker's TLS answers -> what that means here
    "CERTIFICATE_REVOKED": REVOKED,
    "CERTIFICATE_REQUIRED": "it wants a certificate: enrol this device by edge-agent join --token, "
    "or give ?ca=FILE&cert=FILE",
    "HANDSHAKE_FAILURE": "it and this client agree on no way to speak; does it want a certificate? "
    "Enrol this device by edge-agent join --token",
    "CERTIFICATE_EXPIRED": "by the broker's clock this client's certificate has ended, or the "
    "broker's own list of revoked ones has: where the "
    "certificate is good yet (edge-agent doctor says), the coordinator makes the list "
    "anew when it starts (for a broker of one's own: coordinator "
    "authority --for-broker DIR); else enrol this device anew (edge-agent join --token)",
    "UNKNOWN_CA": "this client's certificate is of an authority that the broker does not know: "
    "enrol this device with the broker's own coordinator",
    "BAD_CERTIFICATE": "the broker takes this client's certificate for none: enrol this device "
    "anew (edge-agent join --token)",
    "CERTIFICATE_UNKNOWN": "the broker finds this client's certificate unacceptable: its log says "
    "why (its list of revoked ones is out of date?)",
    "PROTOCOL_VERSION": "it speaks no TLS that is new enough: 1.2 is the least",
}


class Closing(ssl.SSLSocket):
    """A socket that does not outlive a failed handshake: the MQTT library forgets it then without
    closing it.
    """

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except ssl.SSLWantReadError:
            raise
        except OSError:
            self.close()
            raise


def context(address: Address) -> ssl.SSLContext:
    """What a link to `address` trusts and shows. Raises ConfigError for files that are missing or
    hold something else.
    """
    if address.ca is not None and not Path(address.ca).is_file():
        raise ConfigError(f"{address}: the CA file {address.ca} does not exist")
    try:
        made = ssl.create_default_context(cafile=address.ca)
    except ssl.SSLError as error:
        raise ConfigError(f"{address}: {address.ca} holds no certificates: {error}") from error
    made.minimum_version, made.sslsocket_class = ssl.TLSVersion.TLSv1_2, Closing
    if address.cert is not None:
        try:
            reload(made, address)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"{address}: expected a certificate and its key in {address.cert} "
                f"{address.key or ''}: {error}"
            ) from error
    return made


def reload(made: ssl.SSLContext, address: Address) -> None:
    """Has the next connection show the certificate that lies there by now. Raises OSError, of which
    SSLError is one.
    """
    if address.cert is not None:
        made.load_cert_chain(address.cert, address.key)


def private_name(address: Address, name: str) -> str:
    """A client id that only the holder of the certificate's key, or of the password, can know;
    without either, the name itself.

    A broker throws a client out where another connects by its id, whoever that is: an id that
    others can guess would let any enrolled device keep any other from its work.
    """
    if address.cert is not None:
        with contextlib.suppress(OSError):
            key = Path(address.key or address.cert).read_bytes()
            return f"{name}-{hashlib.sha256(key + name.encode()).hexdigest()[:16]}"
    elif address.password:
        return f"{name}-{_stretched(address.password, f'{address.user} {name}')}"
    return name


@functools.cache
def _stretched(password: str, salt: str) -> str:
    """Brokers write ids into logs: who reads one is not to guess the password from it."""
    return hashlib.pbkdf2_hmac(
        "sha512", password.encode(), f"espalier client {salt}".encode(), STRETCHING, 8
    ).hex()


def explain(address: Address, error: ssl.SSLError) -> str:
    """What a failed handshake means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in HOSTNAMES:
            return (
                f"its certificate is for {_names(address)}, not for '{address.host}': use one of "
                "these, or add it (coordinator authority --host)"
            )
        if error.verify_code in TIMES:
            return (
                f"its {error.verify_message}; this device's clock says "
                f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: set it where it "
                "is "
                "wrong, else start the coordinator anew, which renews the certificate "
                "(a broker of one's own: coordinator authority --for-broker DIR)"
            )
        return (
            f"its certificate is not trusted ({error.verify_message}): enrol this device "
            "(edge-agent join --token), or give its authority as mqtts://...?ca=FILE"
        )
    reason = error.reason or ""
    for alert, meaning in ALERTS.items():
        if reason.endswith(alert):
            return meaning
    return "it does not speak TLS at this port: use mqtt://, or the port that does"


def refusal(address: Address, timeout: float = 5.0) -> str:
    """Why a broker's TLS refuses this client; empty where it does not, or nobody answers."""
    try:
        with (
            socket.create_connection((address.host, address.port), timeout) as plain,
            context(address).wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            secure.settimeout(WORD)
            secure.recv(1)
    except ssl.SSLEOFError:
        return ""
    except ssl.SSLError as error:
        return explain(address, error)
    except OSError:
        return ""
    return ""


def _names(address: Address) -> str:
    """The names in a broker's certificate, trusted but for its name."""
    trusting = context(address)
    trusting.check_hostname = False
    try:
        with (
            socket.create_connection((address.host, address.port), 5.0) as plain,
            trusting.wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            shown = secure.getpeercert() or {}
    except OSError:
        return "other names"
    return ", ".join(str(pair[1]) for pair in shown.get("subjectAltName", ())) or "no name at all"
