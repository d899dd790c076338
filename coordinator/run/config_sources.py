"""Combine the sources of a run's configuration: a TOML file, the environment, `--set` and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.settings.config import Config, load, load_tables, parse_setting

__all__ = ["ConfigSources"]


@dataclass(frozen=True)
class ConfigSources:
    """The sources of a configuration. A later field overrides an earlier one.

    file: a TOML file, or None.
    environment: environment variables, used if their names begin with ESPALIER_.
    settings: KEY=VALUE arguments of `--set`.
    flags: keys and values of other command-line options.
    """

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()
    flags: Sequence[tuple[str, Any]] = ()

    def load(self, base: Mapping[str, Any] | None = None) -> Config:
        """Read the configuration. base: values that every source overrides. Raises ConfigError."""
        return load(self.file, self.environment, self.overrides, base=base)

    def load_tables(self) -> Config:
        """Read the configuration without checking the method's settings. Raises ConfigError."""
        return load_tables(self.file, self.environment, self.overrides)

    @property
    def overrides(self) -> list[tuple[str, Any]]:
        """The keys and values of settings and flags."""
        return [*map(parse_setting, self.settings), *self.flags]
