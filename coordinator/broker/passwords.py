"""Read and write the password file of a local broker. Its lines are `user:password`, with the
password in plain text or hashed by mosquitto_passwd.

Hashes have mosquitto's own format, `$7$iterations$salt$hash` of PBKDF2 with SHA-512
(mosquitto_passwd(1)), so that the broker never sees a plain password.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from federated.errors import ConfigError, explain_os_errors

__all__ = ["hash_password", "read", "write"]

# mosquitto reads the number from the file; its own default of 101 is far too low today
ITERATIONS = 20_000


def read(path: Path) -> dict[str, str]:
    """Read the hash of each user. Raises ConfigError for a file that is missing or empty, or an
    invalid line.
    """
    with explain_os_errors(ConfigError, f"password file {path}", UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not colon or not user or not password or user in users:
            raise ConfigError(
                f"password file {path}, line {number}: expected user:password, each user once"
            )
        users[user] = password if _is_hash(password) else hash_password(password)
    if not users:
        raise ConfigError(f"password file {path}: expected lines of user:password, found none")
    return users


def write(path: Path, users: Mapping[str, str]) -> None:
    """Write hashes for a broker, readable by this user only."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        "".join(f"{user}:{password}\n" for user, password in users.items()), encoding="utf-8"
    )


def hash_password(password: str) -> str:
    """Hash a password as mosquitto does, with a random salt."""
    salt = secrets.token_bytes(12)
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS, 64)
    salt_text, hash_text = (base64.b64encode(raw).decode() for raw in (salt, derived))
    return f"$7${ITERATIONS}${salt_text}${hash_text}"


def _is_hash(password: str) -> bool:
    return re.match(r"\$(6|7\$[0-9]+)\$[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+\Z", password) is not None
