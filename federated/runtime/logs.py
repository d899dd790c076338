"""Write logs as text or JSON, to standard error and to rotating files.

Callers use the standard library: `log.info("round %d began", 3, extra={"event": "round began",
"round": 3})`. In JSON that is one object per line with `time` (UTC), `level`, `logger`, `message`
and the fields of `extra`. Secrets passed to `conceal`, and passwords in addresses, are never shown.
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

from federated.errors import ConfigError, explain_os_errors
from federated.runtime.console import report_errors
from federated.safe_text import make_lines_safe, make_safe

__all__ = ["EVENTS", "Form", "conceal", "configure", "log_options", "record_log"]

EVENTS = "log.jsonl"  # events of a run, in its folder
LARGEST, KEPT = 8 << 20, 3  # bytes of a log file, and number of older ones to keep
OURS = ("coordinator", "edge_agent", "export", "federated", "models")
HIDDEN = "***"
SHORTEST = 4  # characters of a secret to hide; hiding every `a` would make a log unreadable
INSIDE = re.compile(r"(?<=://)([^\s/:@\"']*):[^\s/@\"']+@")  # user and password in an address

Form: TypeAlias = Literal["text", "json"]

_secrets: set[str] = set()
_ours: list[logging.Handler] = []  # handlers added by `configure`


def conceal(*secrets: str | None) -> None:
    """Hide these secrets in logs from now on."""
    _secrets.update(secret for secret in secrets if secret and len(secret) >= SHORTEST)


def redact(text: str) -> str:
    """Return the text without secrets, in any of their spellings."""
    for secret in sorted(_secrets, key=len, reverse=True):
        for spelling in list_spellings(secret):
            text = text.replace(spelling, HIDDEN)
    return INSIDE.sub(rf"\1:{HIDDEN}@", text)


def list_spellings(secret: str) -> dict[str, None]:
    """Return a secret as it is, and as spelled in JSON, in addresses and by `repr`."""
    quoted = quote(secret), quote(secret, safe="")
    return dict.fromkeys(
        (
            secret,
            *(json.dumps(secret, ensure_ascii=plain)[1:-1] for plain in (True, False)),
            *quoted,
            repr(secret)[1:-1],
        )
    )


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text that is safe to show."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        record.message = make_safe(record.message, None)
        return super().formatMessage(record)


class FieldFormatter(JsonFormatter):
    """Formats a record as one line of JSON that is safe to show. NaN and infinite numbers become
    null.
    """

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        time = log_data.pop("time")
        return {"time": time} | {
            k: None
            if isinstance(v, float) and not math.isfinite(v)
            else make_lines_safe(v)
            if isinstance(v, str)
            else v
            for k, v in log_data.items()
        }


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current standard error, which a live display replaces to keep lines above its
    table.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class RotatingHandler(RotatingFileHandler):
    """Writes to a file of at most `LARGEST` bytes. If the disk is full, lines are lost with one
    warning, and the run continues.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
        self._complained = False
        self._line = ""  # of the record that is being written

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._line = ""

    def format(self, record: logging.LogRecord) -> str:
        """The library formats each record twice, first to measure it."""
        self._line = self._line or super().format(record)
        return self._line

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the library's name
        if not self._complained:
            self._complained = True
            print(f"logs are lost: {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        # flushing fails again if the disk is still full
        with contextlib.suppress(OSError):
            super().close()


def configure(
    *, verbose: bool | None = None, form: Form = "text", file: Path | None = None
) -> None:
    """Log to standard error, and to a file if one is given. Standard error gets warnings; with
    `verbose` or as JSON, everything. The file gets everything.

    verbose: None keeps the current choice. Raises ConfigError if the file cannot be written.
    """
    root = logging.getLogger()
    stderr = StderrHandler()
    verbose = _ours[0].level == logging.INFO if verbose is None and _ours else bool(verbose)
    stderr.setLevel(logging.INFO if verbose or form == "json" else logging.WARNING)
    handlers: list[logging.Handler] = [stderr] if file is None else [stderr, _open(file)]
    for handler in _ours:
        root.removeHandler(handler)
        handler.close()
    _ours[:] = handlers
    for handler in handlers:
        handler.setFormatter(_make_formatter(form))
        root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags --log-format and --log-file to a command."""

    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="format of the log; json: one object per line",
    )
    @click.option(
        "--log-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="also log to this file, rotated at 8 MB",
    )
    @functools.wraps(command)
    def with_logs(*args: Any, log_format: Form, log_file: Path | None, **options: Any) -> Any:
        if log_format != "text" or log_file is not None:
            with report_errors("--log-file", "train"):
                configure(form=log_format, file=log_file)
        return command(*args, **options)

    return with_logs


@contextmanager
def record_log(path: Path, about: dict[str, Any]) -> Iterator[None]:
    """Also log everything within the context to a file of JSON lines, with the current fields of
    `about`.
    """

    def fill(record: logging.LogRecord) -> bool:
        for key, value in about.items():
            if not hasattr(record, key):
                setattr(record, key, value)
        return True

    handler = RotatingHandler(path)
    handler.setLevel(logging.INFO)
    handler.setFormatter(_make_formatter("json"))
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


def _open(file: Path) -> RotatingHandler:
    with explain_os_errors(ConfigError, f"log file {file}: cannot be written"), file.open("a"):
        pass
    handler = RotatingHandler(file)
    handler.setLevel(logging.INFO)
    return handler


def _make_formatter(form: Form) -> logging.Formatter:
    if form == "text":
        return TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    return FieldFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
        json_ensure_ascii=False,
    )
