"""Choose the submodel that each agent should serve after a release: the one it trained last, or a
smaller one if no update trained that one.
"""

from __future__ import annotations

from coordinator.store.run_database_reader import RunRecords
from coordinator.store.training_counts import count_run

__all__ = ["choose_serving"]


def choose_serving(records: RunRecords) -> dict[str, str]:
    """Return the submodel that each agent should serve, by name without branches: its last one.

    If no update trained that one, it is the largest trained one among the smaller ones, which fits
    the device too; without any, it remains the last one.
    """
    plain = {submodel.unowned.name: submodel.plain.name for submodel in records.read_facts().menu}
    order, untrained = list(dict.fromkeys(plain.values())), set(count_run(records).untrained)

    def choose_trained(name: str) -> str:
        smaller = order[: order.index(name)] if name in untrained else []
        return next((other for other in reversed(smaller) if other not in untrained), name)

    return {
        agent: choose_trained(plain.get(name, name))
        for agent, name in records.read_last_submodels().items()
    }
