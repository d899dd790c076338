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


def make_folder(folder: Path, option: str = "--keep") -> Path:
    """Create the folder that an option names. Raises ConfigError."""
    with explain_os_errors(ConfigError, f"{option} {folder}: cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
