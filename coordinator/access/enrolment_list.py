"""Read a list of devices to enrol from a CSV file, and write their tokens to a file.

name,groups,runs,valid
pi-1,eu canary,kitchen,7d
pi-2,eu,,
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from federated.errors import ConfigError, UsageError, explain_os_errors
from federated.system.disk_sync import sync
from federated.wire import topics
from federated.wire.enrolment_token import SERIAL, Token

__all__ = [
    "CLAIMS",
    "REGISTERED",
    "Device",
    "parse_names",
    "parse_runs",
    "parse_seconds",
    "read_devices",
    "write_tokens",
]

COLUMNS = ("name", "groups", "runs", "valid")  # of a list to enrol
CLAIMS = ("name", "serial", "groups", "runs")  # of a list to claim
REGISTERED = ("name", "groups", "runs")  # of a list to register
LONGEST = 90  # days of a token: as many as a certificate of an agent is valid
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Device:
    """A device to enrol.

    name: of its agent.
    valid: lifetime of its token, seconds.
    groups: to put it into; empty: it keeps those that it has.
    runs: the only ones in which it may take part; empty: its rights stay as they are.
    source: file, line and column of its name, for errors; empty if no file lists it.
    serial: number by which it claims its certificate.
    """

    name: str
    valid: float
    groups: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    source: str = ""
    serial: str = ""


def parse_seconds(text: str) -> float:
    """Return a lifetime such as 90s, 30m, 1h or 7d in seconds. Raises UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([smhd])", text)
    if found is None:
        raise UsageError(f"lifetime: expected a time such as 90s, 30m, 1h or 7d, found '{text}'")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > LONGEST * UNITS["d"]:
        raise UsageError(
            f"lifetime: expected at most {LONGEST}d, that of a certificate, found '{text}'"
        )
    return seconds


def parse_names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return names of groups, or of what else it is, without duplicates, sorted. Raises
    UsageError.
    """
    for name in (found := sorted(set(names))):
        if not re.match(topics.AGENT, name):
            raise UsageError(
                f"{what}: expected 1 to 64 letters, digits, '_', '.' or '-', and not 'all', found "
                f"'{name[:80]}'"
            )
    return tuple(found)


def parse_runs(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of runs without duplicates, sorted. Raises UsageError."""
    for name in (found := sorted(set(names))):
        topics.run(name)  # checks the name
    return tuple(found)


def read_devices(file: Path, valid: float, columns: tuple[str, ...] = COLUMNS) -> list[Device]:
    """Read a list of devices. Raises ConfigError, which names the line and the column, what was
    expected and what was found.

    valid: lifetime of a token whose line has none, seconds. columns: that it may have.
    """
    with explain_os_errors(ConfigError, f"cannot read {file}"):
        raw = file.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        found = raw[error.start : error.start + 1].hex()
        raise ConfigError(f"{file}, line {line}: expected UTF-8, found byte 0x{found}") from error
    devices, lines = list[Device](), dict[str, int]()
    for line, row in read_rows(file, text, columns):
        name = row["name"]
        if name in lines:
            raise ConfigError(
                f"{file}, line {line}, column name: expected each device once, found '{name}' as "
                f"in line {lines[name]}"
            )
        lines[name] = line
        place = f"{file}, line {line}, column"
        with name_place(f"{place} name"):
            topics.command("any", name)  # checks the name
        with name_place(f"{place} groups"):
            groups = parse_names("group", row.get("groups", "").split())
        with name_place(f"{place} runs"):
            runs = parse_runs(row.get("runs", "").split())
        with name_place(f"{place} valid"):
            seconds = parse_seconds(row["valid"]) if row.get("valid") else valid
        serial = row.get("serial") or name
        if not re.match(topics.AGENT, serial):
            raise ConfigError(f"{place} serial: {SERIAL}; found '{serial[:80]}'")
        devices.append(Device(name, seconds, groups, runs, f"{place} name", serial))
    if not devices:
        raise ConfigError(f"{file}: expected a line for each device, found only the columns' names")
    return devices


@contextmanager
def name_place(place: str) -> Iterator[None]:
    """Turn a UsageError into a ConfigError that names the place in a file."""
    try:
        yield
    except UsageError as error:
        raise ConfigError(f"{place}: {error}") from error


def read_rows(
    file: Path, text: str, allowed: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each line with its values by column. Raises ConfigError."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [column.strip() for column in next(reader, [])]
        if "name" not in columns or set(columns) - {*allowed} or len(set(columns)) < len(columns):
            raise ConfigError(
                f"{file}, line 1: expected the column name, and optionally "
                f"{', '.join(allowed[1:-1])} and {allowed[-1]}, found "
                f"{', '.join(columns)[:200] or 'nothing'}"
            )
        for row in reader:
            if row and len(row) != len(columns):
                raise ConfigError(
                    f"{file}, line {reader.line_num}: expected {len(columns)} values "
                    f"({', '.join(columns)}), found {len(row)}"
                )
            if row:
                yield reader.line_num, dict(zip(columns, map(str.strip, row), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{file}, line {reader.line_num}: expected CSV: {error}") from error


def write_tokens(
    file: Path, devices: Iterable[Device], tokens: Iterable[Token], now: float
) -> None:
    """Write tokens to a new file that only this user may read: JSON if its name ends with `.json`,
    else CSV. Raises ConfigError.

    now: from when they are valid, seconds since 1970.
    """
    rows = [
        {
            "name": device.name,
            "token": str(token),
            "until": datetime.fromtimestamp(now + device.valid, UTC).isoformat(timespec="seconds"),
        }
        for device, token in zip(devices, tokens, strict=True)
    ]
    made = io.StringIO(newline="")
    if file.suffix == ".json":
        made.write(msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n")
    else:
        writer = csv.DictWriter(made, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"--out {file}: the file exists: choose another name") from error
    except OSError as error:
        raise ConfigError(f"--out {file}: cannot be written: {error.strerror}") from error
    try:
        with explain_os_errors(ConfigError, f"--out {file}"):
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as opened:
                opened.write(made.getvalue())
            sync(file)
            sync(file.parent)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
