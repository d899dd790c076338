"""Use the certificates of another authority, such as a company's, for the broker and all devices.

Its files are those of the settings `broker.ca`, `certificate`, `key` and `crl`. They are checked
before the broker starts, and again whenever they are replaced; the broker reads copies. Only
devices whose names the operator registered have rights (`coordinator register`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from coordinator.access.certificate_files import to_pem
from coordinator.broker.mosquitto_config import ListenerFiles
from coordinator.settings.service_tables import Broker
from federated.errors import ConfigError, StoreError, explain_os_errors
from federated.runtime import atomic_files

__all__ = ["OutsideAuthority", "read_outside_authority"]

log = logging.getLogger(__name__)

NOTICE = 0.1  # last part of the life of a file, in which a warning names its end
AGAIN = timedelta(hours=1)  # between two such warnings
LISTS = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
FILES = ("certificate", "key", "crl")
PEM, PKCS8 = Encoding.PEM, PrivateFormat.PKCS8


@dataclass(frozen=True)
class CheckedFiles:
    """The content of files that fit together.

    ca, server, crl: PEM; the second has the broker's certificates and its key.
    revoked: serial numbers of revoked certificates, hexadecimal.
    lives: of the broker's certificate and of each list: its file, begin and end.
    lists: those in `crl`.
    """

    ca: bytes
    server: bytes
    crl: bytes
    revoked: frozenset[str]
    lives: tuple[tuple[Path, datetime, datetime | None], ...]
    lists: tuple[x509.CertificateRevocationList, ...]


class OutsideAuthority:
    """Another authority than the fleet's own, whose files fit together."""

    def __init__(self, files: ListenerFiles) -> None:
        """Raises ConfigError, OSError."""
        self._files = self.served = files
        self._times, self._content = self._read_file_times(), read_files(files)
        self._said = ""
        self._keep: Path | None = None
        self._warned = dict[Path, datetime]()  # of its end, when last

    def install(self, folder: Path, keep: Path) -> None:
        """Let the broker use copies of the files in a folder, so that it never reads files that do
        not fit, whenever it loads them. Raises StoreError, and ConfigError if a list is older than
        one used before, or missing.

        keep: file of the newest list of each authority that any run with this folder used.
        """
        with explain_os_errors(StoreError, f"cannot write the broker's files to {folder}"):
            atomic_files.make_private(folder, "the broker's key")
            server = folder / "server.pem"
            self.served = ListenerFiles(folder / "ca.pem", server, server, folder / "crl.pem")
            self._keep = keep
            self._copy(self._content)

    def refresh(self) -> frozenset[str]:
        """Give the broker files that were replaced. If they do not fit, log it; the earlier ones
        stay in use. Return the serial numbers of revoked certificates, hexadecimal.
        """
        try:
            if (times := self._read_file_times()) != self._times:
                content = read_files(self._files)
                self._copy(content)
                self._times, self._content = times, content
                self._warned.clear()
            self._said = ""
        except (ConfigError, OSError) as error:
            if (why := str(error)) != self._said:  # not every second
                log.error("%s; the earlier files of broker.ca stay in use", why)
            self._said = why
        return self._content.revoked

    def warn_of_expiry(self, now: datetime) -> None:
        """Warn of a certificate or a list that expires soon, since the broker then rejects every
        device; of each once in `AGAIN`.
        """
        for path, begin, end in self._content.lives:
            if end is None or now < end - NOTICE * (end - begin):
                continue
            warned = self._warned.get(path)
            if warned is None or abs(now - warned) > AGAIN:  # abs: the clock may be set back
                self._warned[path] = now
                log.warning(
                    "%s expires at %s, and the broker then refuses every device: replace it before",
                    path,
                    f"{end:%Y-%m-%d %H:%M} UTC",
                )

    def _read_file_times(self) -> tuple[int, ...]:
        files = self._files
        return tuple(
            path.stat().st_mtime_ns for path in (files.ca, files.certificate, files.key, files.crl)
        )

    def _copy(self, content: CheckedFiles) -> None:
        """Raises ConfigError if a list is older than one used before, or missing; OSError."""
        served, before = self.served, list(self._content.lists)
        if self._keep is not None and self._keep.exists():
            before += read_lists(self._keep, "the lists used before")
        check_order(self._files.crl, content, before, self._keep)
        if self._keep is not None:
            ours = x509.load_pem_x509_certificates(content.ca)
            others = [one for one in before if not is_signed(one, ours)]  # of other runs
            kept = {one.public_bytes(PEM): None for one in (*others, *content.lists)}
            atomic_files.write(self._keep, b"".join(kept))
        atomic_files.write(served.ca, content.ca)
        atomic_files.write(served.crl, content.crl)
        # with its key in one file, so that both are always replaced together
        atomic_files.write(served.certificate, content.server, mode=0o600)


def read_outside_authority(wanted: Broker) -> OutsideAuthority | None:
    """Return the authority that the settings name, after a check of its files; None without.
    Raises ConfigError.
    """
    given = [name for name in FILES if getattr(wanted, name)]
    if not wanted.ca:
        if given:
            raise ConfigError(f"broker.{given[0]} is for another authority: set broker.ca, too")
        return None
    if not wanted.tls:
        raise ConfigError("broker.ca is for devices with certificates: add --tls")
    if wanted.url:
        raise ConfigError(
            "broker.ca is for a broker that the run starts: give an existing one its files "
            "itself, and name those of the coordinator in its address, without --tls: --broker "
            "'mqtts://HOST?ca=FILE&cert=FILE'"
        )
    if missing := [name for name in FILES if name not in given]:
        raise ConfigError(f"broker.ca needs broker.{' and broker.'.join(missing)}, too")
    paths = {name: Path(getattr(wanted, name)) for name in ("ca", *FILES)}
    for name, path in paths.items():
        if not path.is_file():
            raise ConfigError(f"broker.{name}: expected a file, found none: {path}")
    with explain_os_errors(ConfigError, "cannot read the files of broker.ca"):
        return OutsideAuthority(ListenerFiles(**paths))


def read_files(files: ListenerFiles) -> CheckedFiles:
    """Read the files, and check that they fit together. Raises ConfigError."""
    try:
        return check_files(files)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # `cryptography` reads late
        shown = ", ".join(str(one) for one in (files.ca, files.certificate, files.key, files.crl))
        raise ConfigError(f"cannot read what one of {shown} contains: {error}") from error


def check_files(files: ListenerFiles) -> CheckedFiles:
    authorities, now = read_certificates(files.ca, "broker.ca"), datetime.now(UTC)
    chain = read_certificates(files.certificate, "broker.certificate")
    server, key, lists = chain[0], read_key(files.key), read_lists(files.crl)
    if server.public_key() != key.public_key():
        raise ConfigError(f"{files.key}: expected the key of {files.certificate}, found another")
    if not leads_to(chain, authorities):
        raise ConfigError(
            f"{files.certificate}: expected a certificate that an authority in {files.ca} issued, "
            f"found one of {server.issuer.rfc4514_string()[:100]}"
        )
    if now > server.not_valid_after_utc:
        raise ConfigError(f"{files.certificate} expired at {server.not_valid_after_utc:%Y-%m-%d}")
    for one in lists:
        if not is_signed(one, authorities):
            raise ConfigError(
                f"{files.crl}: expected a list that an authority in {files.ca} signed, found one "
                f"of {one.issuer.rfc4514_string()[:100]}"
            )
        if one.next_update_utc is not None and now > one.next_update_utc:
            raise ConfigError(
                f"{files.crl} expired at {one.next_update_utc:%Y-%m-%d %H:%M} UTC: install the "
                "authority's current list"
            )
    return CheckedFiles(
        b"".join(map(to_pem, authorities)),
        b"".join(map(to_pem, chain)) + key.private_bytes(PEM, PKCS8, NoEncryption()),
        b"".join(one.public_bytes(PEM) for one in lists),
        frozenset(f"{row.serial_number:x}" for one in lists for row in one),
        (
            (files.certificate, server.not_valid_before_utc, server.not_valid_after_utc),
            *((files.crl, one.last_update_utc, one.next_update_utc) for one in lists),
        ),
        tuple(lists),
    )


def is_signed(one: x509.CertificateRevocationList, authorities: Iterable[x509.Certificate]) -> bool:
    """Return whether one of the authorities signed a list."""
    keys = [each.public_key() for each in authorities if each.subject == one.issuer]
    try:
        return any(one.is_signature_valid(key) for key in keys)  # type: ignore[arg-type]
    except (ValueError, TypeError):  # another kind of key
        return False


def check_order(
    path: Path,
    content: CheckedFiles,
    before: Iterable[x509.CertificateRevocationList],
    keep: Path | None,
) -> None:
    """Raise ConfigError if a list is older than an earlier one of the same authority and scope, or
    missing: certificates that were revoked meanwhile would be valid again.

    keep: file that remembers the earlier ones.
    """
    authorities = x509.load_pem_x509_certificates(content.ca)
    given = {identify_list(one): one for one in content.lists}
    remedy = "install the authority's current list" + (
        f", or remove {keep} if the authority started again" if keep is not None else ""
    )
    for old in before:
        if not is_signed(old, authorities):
            continue  # of an authority of another run, or of an earlier one
        first, new = old.last_update_utc, given.get(identify_list(old))
        if new is None:
            raise ConfigError(
                f"{path}: expected a list of revoked certificates of "
                f"{old.issuer.rfc4514_string()[:100]}, as before, found none: {remedy}"
            )
        number, least = (find_extension(one, x509.CRLNumber) for one in (new, old))
        begin = new.last_update_utc
        older = begin < first
        if isinstance(number, x509.CRLNumber) and isinstance(least, x509.CRLNumber):
            older = number.crl_number < least.crl_number
        if older:
            raise ConfigError(
                f"{path}: expected a list of revoked certificates that is not older than the "
                f"one in use (of {first:%Y-%m-%d %H:%M} UTC), found one of "
                f"{begin:%Y-%m-%d %H:%M} UTC: {remedy}"
            )


def identify_list(one: x509.CertificateRevocationList) -> tuple[object, ...]:
    """Return what tells apart lists that replace each other: the issuer, its key, and the scope."""
    kinds = x509.AuthorityKeyIdentifier, x509.IssuingDistributionPoint
    return (one.issuer, *(find_extension(one, kind) for kind in kinds))


def find_extension(
    one: x509.CertificateRevocationList, kind: type[x509.ExtensionType]
) -> x509.ExtensionType | None:
    """Return an extension of a list; None if it has none. Raises ConfigError."""
    try:
        return one.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        issuer = one.issuer.rfc4514_string()[:100]
        raise ConfigError(f"cannot read the extensions of the list of {issuer}: {error}") from error


def leads_to(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Return whether an authority issued the first certificate, by those that follow it."""
    if any(is_issued_by(chain[0], one) for one in authorities):
        return True
    following = chain[1:]
    return bool(following) and is_issued_by(chain[0], chain[1]) and leads_to(following, authorities)


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def read_certificates(path: Path, setting: str) -> list[x509.Certificate]:
    with explain_os_errors(ConfigError, f"{setting}: cannot read {path}"):
        content = path.read_bytes()
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(f"{setting}: expected certificates in PEM in {path}: {error}") from error


def read_key(path: Path) -> PrivateKeyTypes:
    with explain_os_errors(ConfigError, f"broker.key: cannot read {path}"):
        content = path.read_bytes()
    try:
        return load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"broker.key: expected a key in PEM in {path}: {error}") from error


def read_lists(path: Path, what: str = "broker.crl") -> list[x509.CertificateRevocationList]:
    with explain_os_errors(ConfigError, f"{what}: cannot read {path}"):
        found = LISTS.findall(path.read_bytes())
    try:
        if found:
            return [x509.load_pem_x509_crl(one) for one in found]
        problem = "found none"
    except ValueError as error:
        problem = str(error)
    raise ConfigError(f"{what}: expected lists of revoked certificates in PEM: {path}: {problem}")
