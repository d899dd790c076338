"""Load the certificate of a web server, and load it again when it is renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

from federated.errors import ConfigError, UsageError

__all__ = ["ServedCertificate", "load_certificate"]


def load_certificate(
    certificate: Path | None, key: Path | None, options: tuple[str, str]
) -> ssl.SSLContext | None:
    """Return a context for HTTPS; None without a certificate. options: names of the options for
    certificate and key, for error messages. Raises UsageError, ConfigError.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError(f"HTTPS needs both {options[0]} FILE and {options[1]} FILE")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{options[0]} {certificate} and {options[1]} {key}: {error}") from error
    return context


class ServedCertificate:
    """The certificate of a server that runs while it may be renewed.

    tls: context for HTTPS; None: HTTP.
    """

    def __init__(self, certificate: str, key: str, options: tuple[str, str]) -> None:
        """Load the files, see `load_certificate`; empty: none. Raises UsageError, ConfigError."""
        self._certificate, self._key = (Path(one) if one else None for one in (certificate, key))
        self._loaded = self._read_time()
        self.tls = load_certificate(self._certificate, self._key, options)

    def reload_if_renewed(self) -> None:
        """Load the certificate again if its file was written. Raises OSError."""
        written = self._read_time()
        if self.tls is not None and self._certificate is not None and written != self._loaded:
            self.tls.load_cert_chain(self._certificate, self._key)
            self._loaded = written

    def _read_time(self) -> int:
        """Return when the certificate was written; 0 if there is none."""
        found = self._certificate
        return found.stat().st_mtime_ns if found is not None and found.exists() else 0
