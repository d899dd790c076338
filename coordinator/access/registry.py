"""Who was let in: one-time tokens and certificates, in a SQLite file beside the authority's key.
Whoever holds the file learns no secret.

Several processes may use it at once: a command that enrols, and the coordinator that signs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from federated.errors import Refused, StoreError

__all__ = ["Certificate", "Registry", "digest"]

BUSY = 10.0  # seconds to wait for another process
SCHEMA = """
create table if not exists tokens (hash text primary key, name text not null, until real not null,
                                   key text not null default '', serial text not null default '');
create table if not exists certificates (serial text primary key, name text not null,
                                         ends real not null, revoked real, pem text not null);
create table if not exists facts (name text primary key, value text not null);
"""
COLUMNS = "serial, name, ends, revoked, pem"


@dataclass(frozen=True)
class Certificate:
    """An agent's. serial: hexadecimal; ends, revoked: seconds since 1970, revoked None while it is
    good.
    """

    serial: str
    name: str
    ends: float
    revoked: float | None
    pem: str


class Registry:
    """The file, opened. Usable from any thread, one at a time; raises StoreError where it cannot be
    read or written.
    """

    def __init__(self, path: Path) -> None:
        # threads share one connection, which has one transaction at a time
        self._change = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._base = sqlite3.connect(
                path, timeout=BUSY, isolation_level=None, check_same_thread=False
            )
            self._base.executescript(
                f"pragma journal_mode = wal; pragma synchronous = full; {SCHEMA}"
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: expected who was enrolled: {error}") from error
        self.path = path

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A change that happens whole or not at all, and beside no other one, of this process or
        another.
        """
        with self._change:
            try:
                self._base.execute("begin immediate")
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}") from error
            try:
                yield
                self._base.execute("commit")
            except BaseException as error:
                # a disk that took nothing has ended the change itself
                with suppress(sqlite3.Error):
                    self._base.execute("rollback")
                if isinstance(error, sqlite3.Error):
                    raise StoreError(f"{self.path}: {error}") from error
                raise

    # ---- tokens ----------------------------------------------------------------------------------

    def promise(self, secret: bytes, name: str, until: float) -> None:
        """Lets whoever knows the secret enrol as `name`, once, until a time; earlier promises for
        the name that nobody used are withdrawn.
        """
        self._base.execute("delete from tokens where name = ? and serial = ''", (name,))
        self._base.execute(
            "insert into tokens (hash, name, until) values (?, ?, ?)", (digest(secret), name, until)
        )

    def claim(self, secret: bytes, name: str, key: str, now: float) -> Certificate | None:
        """Uses a token for a public key (by its digest). A certificate where this key was given it
        already: its answer may have been lost.

        Call within `alone`. Raises Refused: unknown, of another name, used or over.
        """
        row = self._base.execute(
            "select hash, name, until, key, serial from tokens where hash = ?", (digest(secret),)
        ).fetchone()
        if row is None:
            raise Refused(
                "this token is unknown here: it was replaced by a later one, or is of "
                "another coordinator"
            )
        found, owner, until, used, serial = row
        if owner != name:
            raise Refused(f"this token is for '{owner}', not for '{name}'")
        if serial:
            if hmac.compare_digest(used, key):
                return self.find(serial)
            raise Refused(
                "this token was used already; if that was not this device, revoke "
                f"'{owner}' at once (coordinator revoke {owner})"
            )
        if now > until:
            raise Refused(
                f"this token ended {_ago(now - until)} ago: ask for another "
                f"(coordinator enroll {owner})"
            )
        self._base.execute("update tokens set key = ? where hash = ?", (key, found))
        return None

    def fulfil(self, secret: bytes, serial: str) -> None:
        """Notes which certificate a token brought; it brings no other."""
        self._base.execute("update tokens set serial = ? where hash = ?", (serial, digest(secret)))

    # ---- certificates ----------------------------------------------------------------------------

    def add(self, certificate: Certificate) -> None:
        c = certificate
        self._base.execute(
            f"insert into certificates ({COLUMNS}) values (?, ?, ?, ?, ?)",  # noqa: S608
            (c.serial, c.name, c.ends, c.revoked, c.pem),
        )

    def find(self, serial: str) -> Certificate | None:
        rows = self._select("serial = ?", serial)
        return rows[0] if rows else None

    def certificates(self) -> list[Certificate]:
        """All, by name and end."""
        return self._select("true order by name, ends")

    def good(self, name: str, now: float) -> Certificate | None:
        """The certificate of a name that lasts longest, if one is neither revoked nor over."""
        rows = self._select(
            "name = ? and revoked is null and ends > ? order by ends desc limit 1", name, now
        )
        return rows[0] if rows else None

    def count(self, name: str, now: float) -> int:
        """How many certificates of a name are neither revoked nor over."""
        row = self._read(
            "select count(*) from certificates where name = ? and revoked is null and ends > ?",
            name,
            now,
        )
        return int(row[0][0])

    def revoke(self, name: str, now: float) -> int:
        """Revokes all that a name has, its unused tokens too, and what is over already; how many
        certificates were good.
        """
        self._base.execute("delete from tokens where name = ? and serial = ''", (name,))
        good = self.count(name, now)
        self._base.execute(
            "update certificates set revoked = ? where name = ? and revoked is null", (now, name)
        )
        return good

    def revoked(self, now: float) -> list[Certificate]:
        """Those that a list must name: revoked and not over (a day later, for clocks that are
        slow).
        """
        return self._select("revoked is not null and ends > ? order by serial", now - 86400)

    def barred(self) -> frozenset[str]:
        """The names that have certificates, the last of which was revoked."""
        return frozenset(
            row[0]
            for row in self._read(
                "select name from certificates group by name having max(revoked is null) = 0"
            )
        )

    def _select(self, where: str, *values: object) -> list[Certificate]:
        return [
            Certificate(*row)
            for row in self._read(f"select {COLUMNS} from certificates where {where}", *values)  # noqa: S608
        ]

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._base.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    # ---- facts -----------------------------------------------------------------------------------

    def note(self, name: str, value: str) -> None:
        self._base.execute(
            "insert into facts values (?, ?) on conflict (name) do update set value = "
            "excluded.value",
            (name, value),
        )

    def noted(self, name: str) -> str:
        rows = self._read("select value from facts where name = ?", name)
        return str(rows[0][0]) if rows else ""


def digest(secret: bytes) -> str:
    """What is kept of a secret. It is random, of 128 bits: nothing slower is needed."""
    return hashlib.sha256(b"espalier token " + secret).hexdigest()


def _ago(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
