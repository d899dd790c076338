"""Load the configuration of a run, and compare that of a resumed run with the stored one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from coordinator.run.config_sources import ConfigSources
from coordinator.run.run_preparation import STARTED, find_name
from coordinator.settings.config import Config, read_tables, to_json
from coordinator.store.run_folders import find_latest_run
from coordinator.store.run_store import Store
from federated.errors import ConfigError

__all__ = ["check_same", "list_changed_keys", "load_named", "load_stored"]

FIXED = (
    "name",
    "method",
    "train",
    "model",
    "data",
    "seed",
    "private.clip",
    "private.noise",
    "robust.clip",
    "robust.rule",
    *(f"simulate.{key}" for key in ("agents", "partition", "held", "speeds")),
)  # settings that a resumed run must keep


def load_named(sources: ConfigSources, runs: Path, *, resume: bool) -> Config:
    """Return the configuration of a new run, with a name, or of the run to resume. Raises
    StoreError, ConfigError.
    """
    if resume:
        return load_resumed(sources, runs)
    config = sources.load()
    return msgspec.structs.replace(config, name=config.name or find_name(config, runs))


def load_resumed(sources: ConfigSources, runs: Path) -> Config:
    """Return the configuration of a stored run, with the changes of the sources. Raises StoreError,
    ConfigError.
    """
    name = sources.load_tables().name or find_latest_run(runs)
    before = load_stored(runs, name)
    base = to_json(before)
    after = sources.load(base=base)
    if after.broker.url != before.broker.url:  # the stored settings are for the broker before
        kept = {"listen"} if before.broker.tls else set()  # of the enrolment server
        for key in set(STARTED) - kept:
            base["broker"].pop(key)
        after = sources.load(base=base)
    check_same(before, after)
    return after


def load_stored(runs: Path, name: str) -> Config:
    """Return the configuration of a stored run, after repairs that resuming needs. Raises
    StoreError.
    """
    with closing(Store.open(runs, name)) as store:
        return read_tables(store.read_facts().config)


def check_same(before: Config, after: Config) -> None:
    """Raise ConfigError if a resumed run would change one of the `FIXED` settings."""
    if changes := [change for key in FIXED for change in list_changes(key, before, after)]:
        raise ConfigError(
            f"cannot resume run '{before.name}' with other settings: {'; '.join(changes)}; keep "
            "these settings, or start a new run with another name"
        )


def list_changes(key: str, before: Config, after: Config) -> list[str]:
    """Return the changed values of one setting, or of a table, in words."""
    had, has = (msgspec.to_builtins(attrgetter(key)(config)) for config in (before, after))
    if not isinstance(had, dict):
        return [f"{key}: expected {had!r}, found {has!r}"] if had != has else []
    return [
        f"{key}.{one}: expected {spell_setting(had, one)}, found {spell_setting(has, one)}"
        for one in sorted({*had, *has})
        if had.get(one) != has.get(one)
    ]


def spell_setting(table: Mapping[str, Any], key: str) -> str:
    return repr(table[key]) if key in table else "its default"


def list_changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the settings that differ, such as `train.lr`, without their values, among
    which may be passwords.
    """
    for key in {*before, *after}:
        had, has = before.get(key), after.get(key)
        if isinstance(had, Mapping) and isinstance(has, Mapping):
            yield from (f"{key}.{one}" for one in list_changed_keys(had, has))
        elif had != has:
            yield key
