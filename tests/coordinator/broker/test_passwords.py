"""The password file of a broker: entries in plain text or hashed, stored hashed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from coordinator.broker.passwords import hash_password, read, write
from federated.errors import ConfigError

MADE_BY_MOSQUITTO = (
    "$7$101$WwGkU2y1JGEVeA/z$e8NdO/l0nh/SIv1qrGs+mnYtWJUKlPNnUkQ1SYM4zaV5lf"
    "v8tRewdK6wet1lj9zzZfpoeKLAYqNBG19FkuHTcw=="
)


def verify(password: str, entry: str) -> bool:
    """Check a password as mosquitto does: PBKDF2 with SHA-512, `$7$iterations$salt$hash`."""
    _, kind, iterations, salt, digest = entry.split("$")
    derived = hashlib.pbkdf2_hmac(
        "sha512", password.encode(), base64.b64decode(salt), int(iterations), 64
    )
    return kind == "7" and derived == base64.b64decode(digest)


def test_a_hash_verifies_its_password_and_no_other() -> None:
    entry = hash_password("p:a ss")
    assert verify("p:a ss", entry)
    assert not verify("p:a s", entry)
    assert entry != hash_password("p:a ss")  # salted


def test_a_hash_made_by_mosquitto_verifies() -> None:
    """`mosquitto_passwd -b users me secret`, version 2.0.11."""
    assert verify("secret", MADE_BY_MOSQUITTO)
    assert not verify("Secret", MADE_BY_MOSQUITTO)


def test_plain_lines_are_hashed_and_hashed_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# people\n\nme:a:b\nyou:{MADE_BY_MOSQUITTO}\n")
    users = read(path)
    assert verify("a:b", users["me"])
    assert users["you"] == MADE_BY_MOSQUITTO
    write(tmp_path / "out", users)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    assert "a:b" not in (tmp_path / "out").read_text()
    assert read(tmp_path / "out") == users


@pytest.mark.parametrize("text", ["", "# nobody\n", "me\n", ":x\n", "me:\n", "me:x\nme:y\n"])
def test_a_file_without_valid_users_is_a_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigError, match="users"):
        read(path)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none")
