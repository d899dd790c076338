"""Record the one-time tokens and the issued certificates of the certificate authority, and the
groups and rights of devices, in a SQLite file.

It stores only hashes of the tokens, so the file contains no secret. Several processes may use it at
once: a command that enrols a device, and the coordinator that signs its certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from coordinator import audit_log
from coordinator.audit_log import Actor
from federated.errors import Refused, StoreError, explain_os_errors
from federated.system.disk_sync import sync

__all__ = ["LIMIT", "REGISTRY", "Certificate", "Registry", "hash_secret"]

REGISTRY = "registry.sqlite"  # in the authority's folder
BUSY = 10.0  # seconds to wait for another process
# a thread at a time creates or opens a registry: to close the new file would drop the locks of
# another thread's connection to it
OPENING = threading.Lock()
# in place of a run: a limit's own row, so that a device whose last run is withdrawn stays limited
LIMIT = ""
SCHEMA = """
create table if not exists tokens (hash text primary key, name text not null, until real not null,
                                   key text not null default '', serial text not null default '');
create table if not exists certificates (serial text primary key, name text not null,
                                         ends real not null, revoked real, pem text not null);
create table if not exists facts (name text primary key, value text not null);
create table if not exists members (name text, team text, primary key (name, team));
create table if not exists rights (kind text, name text, run text, primary key (kind, name, run));
create table if not exists runs (name text primary key);
create table if not exists registered (name text primary key, revoked real);
create table if not exists claims (hash text primary key, batch text not null unique,
                                   until real not null, most integer not null, revoked real);
create table if not exists claimable (batch text, device text, name text not null,
                                      key text not null default '', serial text not null default '',
                                      at real, primary key (batch, device));
create index if not exists claimable_of_name on claimable (name);
create index if not exists tokens_of_name on tokens (name);
create index if not exists certificates_of_name on certificates (name);
"""
COLUMNS = "serial, name, ends, revoked, pem"


@dataclass(frozen=True)
class Certificate:
    """A certificate issued to an agent.

    serial: serial number, hexadecimal.
    name: of the agent.
    ends: when it expires, seconds since 1970.
    revoked: when it was revoked, seconds since 1970; None while it is not.
    pem: the certificate itself.
    """

    serial: str
    name: str
    ends: float
    revoked: float | None
    pem: str


def connect(path: Path) -> sqlite3.Connection:
    """Open a registry, which is created if needed. Raises OSError, sqlite3.Error."""
    with OPENING:
        if not path.exists():
            with suppress(FileExistsError):  # another process was faster
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            sync(path.parent)
        base = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        # SQLite does not wait for another process that changes the file to write-ahead logging,
        # nor can it if another process uses the file: then the next start does
        with suppress(sqlite3.OperationalError):
            base.execute("pragma journal_mode = wal")
        # creates the tables that an earlier version did not have
        base.executescript(f"pragma synchronous = full; {SCHEMA}")
        return base


class Registry:
    """The open registry, usable from any thread. Methods raise StoreError if the file cannot be
    read or written.
    """

    def __init__(self, path: Path) -> None:
        # threads share one connection, which can have only one transaction at a time
        self._change = threading.Lock()
        problem = f"{path}: cannot open the registry of agents"
        with explain_os_errors(StoreError, problem, sqlite3.Error):
            self._base = connect(path)
        self.path = path

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction, exclusive across threads and processes."""
        with self._change, explain_os_errors(StoreError, str(self.path), sqlite3.Error):
            self._base.execute("begin immediate")
            try:
                yield
                self._base.execute("commit")
            except BaseException:
                # SQLite rolls back by itself after some errors, such as a full disk
                with suppress(sqlite3.Error):
                    self._base.execute("rollback")
                raise

    # ---- tokens ----------------------------------------------------------------------------------

    def add_token(self, secret: bytes, name: str, until: float) -> None:
        """Add a token: a client that presents the secret may enrol as `name`, once.

        Unused tokens of the same name are withdrawn. until: expiry, in seconds since 1970.
        """
        self._base.execute("delete from tokens where name = ? and serial = ''", (name,))
        self._base.execute(
            "insert into tokens (hash, name, until) values (?, ?, ?)",
            (hash_secret(secret), name, until),
        )

    def claim_token(self, secret: bytes, name: str, key: str, now: float) -> Certificate | None:
        """Use a token for a public key, given by its digest. Return the certificate if this key
        already received one for the token, because the answer may have been lost.

        Call within `transaction`. Raises Refused if the token is unknown, used, expired, or issued
        for another name.
        """
        row = self._base.execute(
            "select hash, name, until, key, serial from tokens where hash = ?",
            (hash_secret(secret),),
        ).fetchone()
        if row is None:
            raise Refused(
                "unknown token: a later one replaced it, or another coordinator issued it; issue a "
                f"new one (coordinator enroll {name})"
            )
        found, owner, until, used, serial = row
        if owner != name:
            raise Refused(
                f"this token was issued for '{owner}', not for '{name}'; issue one for this name "
                f"(coordinator enroll {name})"
            )
        if serial:
            if hmac.compare_digest(used, key):
                return self.find(serial)
            raise Refused(
                f"this token was already used; issue a new one (coordinator enroll {owner}), and "
                "if another device used it, revoke the certificate of that device at once "
                f"(coordinator revoke {owner})"
            )
        if now > until:
            ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
            raise Refused(
                f"this token expired at {ended}; issue a new one (coordinator enroll {owner})"
            )
        self._base.execute("update tokens set key = ? where hash = ?", (key, found))
        return None

    def complete_token(self, secret: bytes, serial: str) -> None:
        """Record the certificate that was issued for a token, which is then used up."""
        self._base.execute(
            "update tokens set serial = ? where hash = ?", (serial, hash_secret(secret))
        )

    # ---- certificates ----------------------------------------------------------------------------

    def add(self, certificate: Certificate) -> None:
        self._base.execute(
            f"insert into certificates ({COLUMNS}) values (?, ?, ?, ?, ?)",  # noqa: S608
            astuple(certificate),
        )

    def find(self, serial: str) -> Certificate | None:
        return next(iter(self._select("serial = ?", serial)), None)

    def list_certificates(self) -> list[Certificate]:
        """Return all certificates, by name and expiry."""
        return self._select("true order by name, ends")

    def list_valid(self, name: str, now: float) -> list[Certificate]:
        """Return the certificates of a name that are neither revoked nor expired, in the order in
        which they expire.
        """
        return self._select("name = ? and revoked is null and ends > ? order by ends", name, now)

    def revoke(self, name: str, now: float) -> int:
        """Revoke all certificates of a name, expired ones as well, and delete its unused tokens and
        claims. Return how many certificates were valid.
        """
        for table in ("tokens", "claimable"):
            self.change(f"delete from {table} where name = ? and serial = ''", name)  # noqa: S608
        self.change("update registered set revoked = ? where name = ?", now, name)
        valid = len(self.list_valid(name, now))
        self._base.execute(
            "update certificates set revoked = ? where name = ? and revoked is null", (now, name)
        )
        return valid

    def list_revoked(self, now: float) -> list[Certificate]:
        """Return the certificates of the revocation list: the revoked ones, until a day after they
        expire, since a broker's clock may be slow.
        """
        return self._select("revoked is not null and ends > ? order by serial", now - 86400)

    def list_barred(self) -> frozenset[str]:
        """Return the agents whose certificates and registration are all revoked."""
        query = (
            "select name from (select name, revoked from certificates union all select name, "
            "revoked from registered) group by name having max(revoked is null) = 0"
        )
        return frozenset(row[0] for row in self.read(query))

    def list_revocations(self) -> frozenset[tuple[str, str]]:
        """Return the serial number and the name of each certificate that was revoked."""
        return frozenset(
            self.read("select serial, name from certificates where revoked is not null")
        )

    def _select(self, where: str, *values: object) -> list[Certificate]:
        return [
            Certificate(*row)
            for row in self.read(f"select {COLUMNS} from certificates where {where}", *values)  # noqa: S608
        ]

    def read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with explain_os_errors(StoreError, str(self.path), sqlite3.Error):
            return self._base.execute(query, values).fetchall()

    def list_names(self) -> frozenset[str]:
        """Return the devices that have or had a certificate, or have an unused token or claim."""
        unused = " union ".join(
            f"select name from {table} where serial = ''"  # noqa: S608
            for table in ("tokens", "claimable")
        )
        query = f"select name from certificates union select name from registered union {unused}"  # noqa: S608
        return frozenset(row[0] for row in self.read(query))

    def change(self, statement: str, *values: object) -> None:
        """Execute a statement; within `transaction`."""
        self._base.execute(statement, values)

    # ---- audit log -------------------------------------------------------------------------------

    def record(self, by: Actor | None, what: str, names: Sequence[str]) -> None:
        """Add a row to the audit log for each device of a command; within `transaction`."""
        audit_log.add(self._base, by, what, names)

    # ---- names in certificates of another authority ----------------------------------------------

    def register(self, name: str) -> None:
        """Let a device take part that has a certificate of another authority; within
        `transaction`.
        """
        self.change("insert or replace into registered values (?, null)", name)

    def list_registered(self) -> frozenset[str]:
        """Return the registered names that are not revoked."""
        rows = self.read("select name from registered where revoked is null")
        return frozenset(row[0] for row in rows)

    # ---- groups of devices -----------------------------------------------------------------------

    def set_groups(self, name: str, groups: Iterable[str]) -> None:
        """Make a device a member of these groups only; within `transaction`. If it leaves a group
        that is limited to named runs, it stays limited, to the runs of its own.
        """
        groups = set(groups)
        left = set(self.find_groups(name))
        limited = {row[0] for row in self.read("select name from rights where kind = 'group'")}
        if (left - groups) & limited:
            self.change("insert or ignore into rights values ('agent', ?, ?)", name, LIMIT)
        self._base.execute("delete from members where name = ?", (name,))
        self._base.executemany("insert into members values (?, ?)", [(name, one) for one in groups])

    def find_groups(self, name: str) -> tuple[str, ...]:
        """Return the groups of a device."""
        rows = self.read("select team from members where name = ? order by team", name)
        return tuple(row[0] for row in rows)

    def list_groups(self) -> dict[str, tuple[str, ...]]:
        """Return the groups of each device that is in any."""
        found: dict[str, tuple[str, ...]] = {}
        for name, group in self.read("select name, team from members order by name, team"):
            found[name] = (*found.get(name, ()), group)
        return found

    # ---- named values of the authority, such as the port of its server ---------------------------

    def set_fact(self, name: str, value: str) -> None:
        self._base.execute(
            "insert into facts values (?, ?) on conflict (name) do update set value = "
            "excluded.value",
            (name, value),
        )

    def get_fact(self, name: str) -> str:
        rows = self.read("select value from facts where name = ?", name)
        return str(rows[0][0]) if rows else ""


def hash_secret(secret: bytes) -> str:
    """Return the hash that is stored for a secret. Secrets are 128 random bits, so a slow hash is
    not needed.
    """
    return hashlib.sha256(b"espalier token " + secret).hexdigest()
