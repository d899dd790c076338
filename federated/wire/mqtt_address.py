"""Parse the address of an MQTT broker: `HOST`, `HOST:PORT`, `mqtt://[user:password@]host[:port]` or
`mqtts://...[?ca=FILE&cert=FILE&key=FILE]`.

IPv6 addresses are in brackets. Special characters in file names are percent-encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from federated.errors import UsageError
from federated.runtime.logs import conceal

__all__ = ["PORTS", "MqttAddress", "add_credentials", "format_url", "parse_mqtt_address"]

PORTS = {"mqtt": 1883, "mqtts": 8883}
FILES = ("ca", "cert", "key")
QUOTED = "in a password, write '/', '?', '#' and '@' as %2F, %3F, %23 and %40"
EXPECTED = (
    "expected HOST, HOST:PORT, mqtt://[user:password@]host[:port] or "
    "mqtts://...[?ca=FILE&cert=FILE&key=FILE]"
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
    """

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_mqtt_address(text: str) -> MqttAddress:
    """Parse the address of an MQTT broker. Raises UsageError."""
    if "://" not in text:
        text = f"mqtt://{text}"
    scheme, rest = text.split("://", 1)
    if scheme not in PORTS:
        raise _make_error(text, f"the scheme '{scheme}' is neither mqtt nor mqtts")
    if rest.split("?")[0].split("@")[-1].count(":") > 1 and "[" not in rest:
        raise _make_error(text, "write an IPv6 address in brackets, as in [::1]:1883")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _make_error(
            text, f"the host or port is invalid; {QUOTED}" if "@" in rest else str(error)
        ) from None  # its text may contain a piece of the password
    if "#" in rest:
        raise _make_error(text, f"'#' is not allowed; {QUOTED}")
    if not host or port == 0:
        raise _make_error(text, "the host is missing" if not host else "port 0 is invalid")
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.path not in ("", "/") or options.keys() - set(FILES) or (options and scheme == "mqtt"):
        raise _make_error(
            text, "after the port, only mqtts:// takes options: 'ca=FILE', 'cert=FILE', 'key=FILE'"
        )
    files = {name: found[0] for name, found in options.items()}
    if "key" in files and "cert" not in files:
        raise _make_error(text, "key=FILE requires cert=FILE")
    user, password = (
        None if part is None else unquote(part) for part in (parts.username, parts.password)
    )
    conceal(password)
    return MqttAddress(
        host, PORTS[scheme] if port is None else port, scheme == "mqtts", user, password, **files
    )


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
    scheme, where = str(address).split("://")
    files = {name: value for name in FILES if (value := getattr(address, name)) is not None}
    return f"{scheme}://{user}{where}{f'?{urlencode(files)}' if files else ''}"


def _make_error(text: str, why: str) -> UsageError:
    shown = text if "@" not in text else f"{text.split('://')[0]}://...@{text.rsplit('@', 1)[1]}"
    return UsageError(f"broker address '{shown}': {why}; {EXPECTED}")
