"""Load the certificate of a web server."""

from __future__ import annotations

import ssl
from pathlib import Path

from federated.errors import ConfigError, UsageError

__all__ = ["load_certificate"]


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
