"""The sources that a run's configuration is read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.settings.config import Config, load, load_tables, parse_setting

__all__ = ["ConfigSources"]


@dataclass(frozen=True)
class ConfigSources:
    """Where a configuration comes from; a later field overrides an earlier one.

    file: a TOML file, or None.
    environment: environment variables; those named ESPALIER_... count.
    settings: KEY=VALUE texts of `--set`.
    flags: keys and values of the command's other options.
    """

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()
    flags: Sequence[tuple[str, Any]] = ()

    def load(self, base: Mapping[str, Any] | None = None) -> Config:
        """Read the configuration. base: values that every source overrides. Raises ConfigError."""
        given = [*map(parse_setting, self.settings), *self.flags]
        return load(self.file, self.environment, given, base=base)

    def load_tables(self) -> Config:
        """The same without a check of the method's settings. Raises ConfigError."""
        given = [*map(parse_setting, self.settings), *self.flags]
        return load_tables(self.file, self.environment, given)
