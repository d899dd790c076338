"""Logs: plain lines or JSON, to standard error and to files that rotate; what an event is about
goes beside its words as fields.

Calls stay those of the standard library: `log.info("round %d began", 3, extra={"event": "round
began", "round": 3})`. As JSON that is one object on one line: `time` (UTC), `level`, `logger`,
`message`, and the fields. Secrets named to `conceal`, and passwords inside addresses, never show.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias
from urllib.parse import quote

import click
from pythonjsonlogger.json import JsonFormatter

from federated.errors import ConfigError

__all__ = ["EVENTS", "Form", "conceal", "concealed", "configure", "logged", "recording"]

EVENTS = "log.jsonl"  # in a run's folder: the events of the run
LARGEST, KEPT = 8 << 20, 3  # bytes of a file of logs, and how many older ones stay beside it
OURS = ("coordinator", "edge_agent", "export", "federated", "models")
HIDDEN = "***"
SHORTEST = 4  # characters: to hide each letter `a` would leave nothing to read
INSIDE = re.compile(r"(?<=://)([^\s/:@\"']*):[^\s/@\"']+@")  # user and password in an address

Form: TypeAlias = Literal["text", "json"]

_secrets: set[str] = set()
_ours: list[logging.Handler] = []  # the handlers that `configure` put up


def conceal(*secrets: str | None) -> None:
    """From now on these show nowhere in logs."""
    _secrets.update(secret for secret in secrets if secret and len(secret) >= SHORTEST)


def concealed(text: str) -> str:
    """The text without what is secret, however it was spelled into it."""
    for secret in sorted(_secrets, key=len, reverse=True):
        for spelled in spellings(secret):
            text = text.replace(spelled, HIDDEN)
    return INSIDE.sub(rf"\1:{HIDDEN}@", text)


def spellings(secret: str) -> dict[str, None]:
    """As it is, in JSON, in addresses and in Python's own words."""
    quoted = quote(secret), quote(secret, safe="")
    return dict.fromkeys(
        (
            secret,
            *(json.dumps(secret, ensure_ascii=plain)[1:-1] for plain in (True, False)),
            *quoted,
            repr(secret)[1:-1],
        )
    )


class Words(logging.Formatter):
    """One line for a person: what another said cannot look like a second one."""

    def format(self, record: logging.LogRecord) -> str:
        return concealed(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        record.message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.message)
        return super().formatMessage(record)


class Fields(JsonFormatter):
    """One line for a program. Numbers that JSON does not have are null."""

    def format(self, record: logging.LogRecord) -> str:
        return concealed(super().format(record))

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        time = log_data.pop("time")
        return {"time": time} | {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in log_data.items()
        }


class Present(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment: a live display puts itself in its place,
    to keep lines above the table.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class Rotating(RotatingFileHandler):
    """A file that never outgrows `LARGEST`. A disk that takes nothing more costs the lines, and one
    word about it; never the run.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
        self._complained = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the library's name
        if not self._complained:
            self._complained = True
            print(f"logs are lost: {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        # what a full disk did not take is tried again, and fails again
        with contextlib.suppress(OSError):
            super().close()


def configure(
    *, verbose: bool | None = None, form: Form = "text", file: Path | None = None
) -> None:
    """Logs to standard error (warnings; with `verbose`, or as JSON, all that happens), and all that
    happens to a file if one is named.

    verbose: None leaves it as it was. Raises ConfigError for a file that cannot be written.
    """
    root = logging.getLogger()
    here = Present()
    said = _ours[0].level == logging.INFO if verbose is None and _ours else bool(verbose)
    here.setLevel(logging.INFO if said or form == "json" else logging.WARNING)
    handlers: list[logging.Handler] = [here] if file is None else [here, _opened(file)]
    for handler in _ours:
        root.removeHandler(handler)
        handler.close()
    _ours[:] = handlers
    for handler in handlers:
        handler.setFormatter(_formatter(form))
        root.addHandler(handler)
    root.setLevel(logging.INFO if said else logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)


def logged(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the flags --log-format and --log-file, and sees to them."""

    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json: one object per line, with fields",
    )
    @click.option(
        "--log-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="log all that happens there too; it rotates at 8 MB",
    )
    @functools.wraps(command)
    def with_logs(*args: Any, log_format: Form, log_file: Path | None, **options: Any) -> Any:
        if log_format != "text" or log_file is not None:
            configure(form=log_format, file=log_file)
        return command(*args, **options)

    return with_logs


@contextmanager
def recording(path: Path, about: dict[str, Any]) -> Iterator[None]:
    """All that happens meanwhile goes to a file of JSON lines as well, with the fields of `about`
    as they are at the moment.
    """

    def fill(record: logging.LogRecord) -> bool:
        for key, value in about.items():
            if not hasattr(record, key):
                setattr(record, key, value)
        return True

    handler = Rotating(path)
    handler.setLevel(logging.INFO)
    handler.setFormatter(_formatter("json"))
    handler.addFilter(fill)
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in OURS}
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _opened(file: Path) -> Rotating:
    try:
        with file.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"--log-file {file}: {error.strerror}") from error
    handler = Rotating(file)
    handler.setLevel(logging.INFO)
    return handler


def _formatter(form: Form) -> logging.Formatter:
    if form == "text":
        return Words("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return Fields(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
        json_ensure_ascii=False,
    )
