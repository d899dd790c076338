"""Choice of the submodel that each agent serves."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from coordinator.release.serving_choice import choose_serving
from coordinator.store.run_store import Store
from coordinator.store.training_counts import count_run
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
