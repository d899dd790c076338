"""Users of a broker that is started here: a file of lines `user:password`, plain or as
mosquitto_passwd hashes them.

The hash is mosquitto's own, `$7$iterations$salt$hash` of PBKDF2 over SHA-512 (mosquitto_passwd(1)),
so that the broker never sees a plain password.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from federated.errors import ConfigError

__all__ = ["hashed", "read", "write"]

# mosquitto reads the number from the file; its own default of 101 is from another age
ITERATIONS = 20_000


def read(path: Path) -> dict[str, str]:
    """user -> hash. Raises ConfigError for a file that is missing, empty, or has a line that is
    none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"password file {path}: "
            f"{(error.strerror if isinstance(error, OSError) else '') or error}"
        ) from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not colon or not user or not password or user in users:
            raise ConfigError(
                f"password file {path}, line {number}: expected user:password, each user once"
            )
        users[user] = password if _is_hash(password) else hashed(password)
    if not users:
        raise ConfigError(f"password file {path}: expected lines of user:password, found none")
    return users


def write(path: Path, users: Mapping[str, str]) -> None:
    """Writes hashes for a broker to read, for the eyes of this user only."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        "".join(f"{user}:{password}\n" for user, password in users.items()), encoding="utf-8"
    )


def hashed(password: str) -> str:
    salt = secrets.token_bytes(12)
    return f"$7${ITERATIONS}${_text(salt)}${_text(_derive(password, salt, ITERATIONS))}"


def _is_hash(password: str) -> bool:
    return re.match(r"\$(6|7\$[0-9]+)\$[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+\Z", password) is not None


def _derive(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, 64)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
