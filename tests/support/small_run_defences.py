"""Defences of a small run, and updates that change every weight by a given amount."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from coordinator import database_row_digests
from coordinator.settings.config import load
from coordinator.trust import norm_and_privacy_tables
from coordinator.trust.configured_defences import Defences
from coordinator.trust.norm_bounds import measure_change
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial

__all__ = ["MENU", "PLAIN", "STATE", "check_update", "config", "database", "defences", "update"]

NET = network("mlp", (4,), 3)
PLAIN = find_method("fedavg")
SETTINGS = configure(PLAIN, {"norm": "static"})
MENU = PLAIN.menu(NET, SETTINGS)
STATE = PLAIN.start(initial(NET, 0), MENU, SETTINGS)


def config(**given):
    return load(None, {}, [(key.replace("__", "."), value) for key, value in given.items()])


def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.executescript(norm_and_privacy_tables.SCHEMA + database_row_digests.SCHEMA)
    return made


def defences(
    folder: Path, known: sqlite3.Connection | None = None, round: int = 1, **given
) -> Defences:
    return Defences(
        config(**given), norm_and_privacy_tables.TrustTables(known or database()), folder, round
    )


def check_update(defences: Defences, update: Update) -> None:
    """Check an update made from `STATE`. Raises Refused if it moved too far."""
    sent = PLAIN.dispatch(STATE, PLAIN.place(STATE, update.submodel))
    defences.check(update, measure_change(update, sent) if defences.measures else {})


def update(change: float, agent: str = "a0", round: int = 1) -> Update:
    sent = PLAIN.dispatch(STATE, PLAIN.place(STATE, MENU[0]))
    tensors = {name: value.numpy() + np.float32(change) for name, value in sent.items()}
    return Update("r", round, 1, agent, "train", MENU[0], "r0", 5, 1, tensors)
