"""How a person names a broker: `HOST`, `HOST:PORT`, `mqtt://[user:password@]host[:port]` or
`mqtts://...[?ca=FILE&cert=FILE&key=FILE]`.

IPv6 in brackets. Every part of a file's name that a URL would read otherwise is quoted as in URLs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from federated.errors import UsageError
from federated.runtime.logs import conceal

__all__ = ["PORTS", "Address", "identified", "parse_address", "scheme_of", "url"]

PORTS = {"mqtt": 1883, "mqtts": 8883}
FILES = ("ca", "cert", "key")
QUOTED = "a '/', '?', '#' or '@' of a password is written %2F, %3F, %23, %40"
EXPECTED = (
    "expected HOST, HOST:PORT, mqtt://[user:password@]host[:port] or "
    "mqtts://...[?ca=FILE&cert=FILE&key=FILE]"
)


@dataclass(frozen=True)
class Address:
    """Where a broker is. ca: file of the certificate authority to trust, in place of the system's;
    the password shows nowhere.

    cert: file of the certificate that this client shows, with what leads from it to its authority;
    key: of its key, empty where `cert` holds both.
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


def scheme_of(text: str) -> str:
    """The scheme of a broker's address; `mqtt` where the address names none."""
    scheme, separator, _ = text.partition("://")
    return scheme if separator else "mqtt"


def parse_address(text: str) -> Address:
    """Read the address of an MQTT broker. Raises UsageError, saying what is wrong."""
    if "://" not in text:
        text = f"mqtt://{text}"
    scheme, rest = text.split("://", 1)
    if scheme not in PORTS:
        raise _wrong(text, f"the scheme '{scheme}' is neither mqtt nor mqtts")
    if rest.split("?")[0].split("@")[-1].count(":") > 1 and "[" not in rest:
        raise _wrong(text, "an IPv6 address goes in brackets, as in [::1]:1883")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong(
            text, f"the host or port is none; {QUOTED}" if "@" in rest else str(error)
        ) from None  # its words may hold a piece of the password
    if "#" in rest:
        raise _wrong(text, f"'#' belongs to no address; {QUOTED}")
    if not host or port == 0:
        raise _wrong(text, "a host is missing" if not host else "port 0 is no broker's")
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.path not in ("", "/") or options.keys() - set(FILES) or (options and scheme == "mqtt"):
        raise _wrong(
            text, "only '?ca=FILE', 'cert=FILE' and 'key=FILE' may follow, and only with mqtts://"
        )
    files = {name: found[0] for name, found in options.items()}
    if "key" in files and "cert" not in files:
        raise _wrong(text, "a key is of use only with its certificate: give cert=FILE too")
    user, password = (
        None if part is None else unquote(part) for part in (parts.username, parts.password)
    )
    conceal(password)
    return Address(
        host, PORTS[scheme] if port is None else port, scheme == "mqtts", user, password, **files
    )


def identified(address: Address, ca: str, cert: str) -> Address:
    """The same broker for who shows this certificate; what the address names itself stays."""
    return replace(address, ca=address.ca or ca, cert=address.cert or cert)


def url(address: Address) -> str:
    """The text that `parse_address` reads as this address, its password included: not to be
    shown.
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


def _wrong(text: str, why: str) -> UsageError:
    shown = text if "@" not in text else f"{text.split('://')[0]}://...@{text.rsplit('@', 1)[1]}"
    return UsageError(f"broker address '{shown}': {why}; {EXPECTED}")
