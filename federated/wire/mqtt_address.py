"""Parse the address of an MQTT broker: `HOST`, `HOST:PORT`, `mqtt://[user:password@]host[:port]`,
`mqtts://...[?ca=FILE&cert=FILE&key=FILE&alpn=NAME]`, or, over WebSockets, `ws://...[/PATH]` and
`wss://...[/PATH][?ca=FILE&...]`.

IPv6 addresses are in brackets. Special characters in file names are percent-encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from federated.errors import UsageError
from federated.runtime.logs import conceal

__all__ = ["PORTS", "MqttAddress", "add_credentials", "format_url", "parse_mqtt_address"]

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
PATH = "/mqtt"  # where brokers serve WebSockets unless configured otherwise
HTTPS = 443
FILES = ("ca", "cert", "key")
OPTIONS: dict[str, tuple[str, ...]] = {
    "mqtt": (),
    "mqtts": (*FILES, "alpn"),
    "ws": (),
    "wss": FILES,
}
QUOTED = "in a password, write '/', '?', '#' and '@' as %2F, %3F, %23 and %40"
EXPECTED = (
    "expected HOST, HOST:PORT, mqtt://[user:password@]host[:port], "
    "mqtts://...[?ca=FILE&cert=FILE&key=FILE], or ws:// or wss:// for WebSockets"
)


@dataclass(frozen=True)
class MqttAddress:
    """The address of an MQTT broker.

    host, port: of the broker.
    tls: whether to use TLS.
    user, password: for the broker; the password is never shown.
    ca: file of the certificate authority to trust instead of the system's.
    cert: file of the client's certificate chain.
    key: file of its key; None if `cert` contains both.
    path: of the broker's WebSockets; None for MQTT over TCP.
    alpn: name of the protocol that TLS requests (ALPN), for servers that share a port.
    """

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    path: str | None = None
    alpn: str | None = None

    @property
    def scheme(self) -> str:
        """mqtt, mqtts, ws or wss."""
        return f"{'mqtt' if self.path is None else 'ws'}{'s' if self.tls else ''}"

    @property
    def origin(self) -> str:
        """The address without the path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __str__(self) -> str:
        """The address as other clients may use it: without user, password and files."""
        usual = self.alpn in (None, _find_alpn(self.scheme, self.port))
        query = "" if usual else f"?{urlencode({'alpn': self.alpn})}"
        return f"{self.origin}{self.path or ''}{query}"


def parse_mqtt_address(text: str) -> MqttAddress:
    """Parse the address of an MQTT broker. Raises UsageError."""
    if "://" not in text:
        text = f"mqtt://{text}"
    scheme, rest = text.split("://", 1)
    if scheme not in PORTS:
        raise _make_error(text, f"the scheme '{scheme}' is none of {', '.join(PORTS)}")
    if rest.split("?")[0].split("/")[0].split("@")[-1].count(":") > 1 and "[" not in rest:
        raise _make_error(text, "write an IPv6 address in brackets, as in [::1]:1883")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        why = "the port must be a number from 1 to 65535" if "Port" in str(error) else str(error)
        raise _make_error(
            text, f"the host or port is invalid; {QUOTED}" if "@" in rest else why
        ) from None  # its text may contain a piece of the password
    if "#" in rest:
        raise _make_error(text, f"'#' is not allowed; {QUOTED}")
    if not host or port == 0:
        raise _make_error(text, "the host is missing" if not host else "port 0 is invalid")
    try:
        valid = host.isprintable() and " " not in host  # a proxy would read more than a host
        host.encode("idna")
    except UnicodeError:
        valid = False
    if not valid:
        raise _make_error(text, "the host is not a valid name")
    options = _read_options(text, scheme, parts.query)
    web = scheme in ("ws", "wss")
    if parts.path not in ("", "/") and not web:
        raise _make_error(text, "after the port, only ws:// and wss:// take a path")
    if "@" in parts.path:
        raise _make_error(text, f"'@' is not allowed in a path; {QUOTED}")
    port = PORTS[scheme] if port is None else port
    if alpn := _find_alpn(scheme, port):
        options.setdefault("alpn", alpn)
    user, password = (
        None if part is None else unquote(part) for part in (parts.username, parts.password)
    )
    conceal(password)
    where = quote(parts.path, safe="/%:!$&'()*+,;=~")
    path = (where if where not in ("", "/") else PATH) if web else None
    tls = scheme in ("mqtts", "wss")
    return MqttAddress(host, port, tls, user, password, path=path, **options)


def _find_alpn(scheme: str, port: int) -> str | None:
    """Return the protocol that TLS requests by default: on the port of web servers MQTT."""
    return "mqtt" if scheme == "mqtts" and port == HTTPS else None


def _read_options(text: str, scheme: str, query: str) -> dict[str, str]:
    """Return the options after `?`. Raises UsageError."""
    found = parse_qs(query, keep_blank_values=True)
    if found.keys() - set(OPTIONS[scheme]):
        raise _make_error(
            text,
            "only mqtts:// and wss:// take options: 'ca=FILE', 'cert=FILE', 'key=FILE', and "
            "mqtts:// also 'alpn=NAME'",
        )
    if "key" in found and "cert" not in found:
        raise _make_error(text, "key=FILE requires cert=FILE")
    return {name: values[0] for name, values in found.items()}


def add_credentials(address: MqttAddress, ca: str, cert: str) -> MqttAddress:
    """Return the address with these files, except those that it already names."""
    return replace(address, ca=address.ca or ca, cert=address.cert or cert)


def format_url(address: MqttAddress) -> str:
    """Return the text that `parse_mqtt_address` reads as this address. It contains the password, so
    do not show it.
    """
    user = (
        ""
        if address.user is None
        else quote(address.user, safe="")
        + ("" if address.password is None else f":{quote(address.password, safe='')}")
        + "@"
    )
    scheme, where = address.origin.split("://")
    options = {
        name: value for name in OPTIONS[scheme] if (value := getattr(address, name)) is not None
    }
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{user}{where}{address.path or ''}{query}"


def _make_error(text: str, why: str) -> UsageError:
    shown = text if "@" not in text else f"{text.split('://')[0]}://...@{text.rsplit('@', 1)[1]}"
    return UsageError(f"broker address '{shown}': {why}; {EXPECTED}")
