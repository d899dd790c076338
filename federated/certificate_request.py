"""Sign a request for a device's certificate. Needs `cryptography`."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["sign_request"]


def sign_request(name: str, key: ec.EllipticCurvePrivateKey) -> str:
    """Return a certificate request (PKCS #10, PEM) for a name, signed with its key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
