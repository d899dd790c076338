"""Check that a benchmark can write its log and folder before it runs for hours."""

from __future__ import annotations

from pathlib import Path

from federated.errors import ConfigError, explain_os_errors

__all__ = ["check_log", "make_folder"]


def check_log(log: Path | None) -> None:
    """Raise ConfigError if the file of `--log` cannot be written."""
    if log is None:
        return
    new = not log.exists()
    with explain_os_errors(ConfigError, f"--log {log}: cannot be written"), log.open("ab"):
        pass
    if new:
        log.unlink()


def make_folder(keep: Path) -> Path:
    """Create the folder of `--keep`. Raises ConfigError."""
    with explain_os_errors(ConfigError, f"--keep {keep}: cannot be created"):
        keep.mkdir(parents=True, exist_ok=True)
    return keep
