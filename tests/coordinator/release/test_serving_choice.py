"""Choice of the submodel that each agent serves."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from coordinator.release.history import Item
from coordinator.release.serving_choice import assign_missing, choose_serving
from coordinator.store.run_store import Store
from coordinator.store.training_counts import count_run
from federated.wire.release_messages import Serving, Version
from tests.support.memory_federation import RUN, Member, digits, federate

SMALL, WHOLE = "w0.5-d2", "w1-d2"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return the folder of runs with one in which both agents trained the whole network."""
    federate(
        tmp_path,
        [Member(f"a{i}", digits(i, 2)) for i in range(2)],
        {
            "method.name": "fedavg",
            "method.widths": [0.5, 1.0],
            "model.name": "mlp-small",
            "data.name": "digits",
            "rounds": 1,
            "train.steps": 1,
            "evaluate.devices": False,
        },
    )
    return tmp_path / "runs"


def test_an_agent_serves_a_smaller_trained_submodel_if_its_own_is_untrained(
    stored: Path,
) -> None:
    database = sqlite3.connect(stored / RUN / "run.sqlite")
    with database:  # a1 trained the small one, and a0 failed at the large one
        database.execute("UPDATE updates SET submodel = ? WHERE agent = 'a1'", (SMALL,))
        database.execute("UPDATE updates SET outcome = 'failed: out of memory' WHERE agent = 'a0'")
    database.close()
    store = Store.open(stored, RUN, read_only=True)
    assert count_run(store).untrained == [WHOLE]
    assert choose_serving(store) == {"a0": SMALL, "a1": SMALL}


def test_an_agent_with_the_smallest_submodel_keeps_it(stored: Path) -> None:
    database = sqlite3.connect(stored / RUN / "run.sqlite")
    with database:
        database.execute(
            "UPDATE updates SET submodel = ?, outcome = 'late' WHERE agent = 'a1'", (SMALL,)
        )
    database.close()
    assert choose_serving(Store.open(stored, RUN, read_only=True)) == {"a0": WHOLE, "a1": SMALL}, (
        "a larger one may not fit the device"
    )


def test_an_agent_that_a_version_lacks_gets_what_it_served_else_the_largest_up_to_its_own() -> None:
    version = Version("a" * 12, 1, "a" * 64, 1, ("s", "m", "xl"), {"known": "xl"})
    reports = {
        "before": Serving("before", "x", version.name, "s"),
        "other": Serving("other", "x", "b" * 12, "s", refused=version.name),
    }
    trained = {"known": "l", "before": "l", "other": "l", "joined": "m", "tiny": "xs"}
    item, notes = assign_missing(
        Item(version, reports=reports), trained, ("xs", "s", "m", "l", "xl")
    )
    assert item.version.assignment == {"known": "xl", "before": "s", "other": "m", "joined": "m"}
    assert [note.split(": ", 1)[1] for note in notes] == [
        "it gets s, which it served of this version before",
        "it gets m, the largest one that is not larger than its m",
        "it gets m, the largest one that is not larger than its l",
    ]
