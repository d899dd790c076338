"""Choose the submodel that each agent should serve after a release: the one it trained last, or a
smaller one if no update trained that one. If a version lacks it, choose another one for the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coordinator.release.history import Item
from coordinator.store.run_database_reader import RunRecords
from coordinator.store.training_counts import count_run
from federated.wire.release_messages import Serving, Version

__all__ = ["assign_missing", "choose_serving", "read_order"]


def read_order(records: RunRecords) -> tuple[str, ...]:
    """Return the names of a run's submodels without branches, smallest first."""
    return tuple(dict.fromkeys(submodel.plain.name for submodel in records.read_facts().menu))


def choose_serving(records: RunRecords) -> dict[str, str]:
    """Return the submodel that each agent should serve, by name without branches: its last one.

    If no update trained that one, it is the largest trained one among the smaller ones, which fits
    the device too; without any, it remains the last one.
    """
    plain = {submodel.unowned.name: submodel.plain.name for submodel in records.read_facts().menu}
    order, untrained = read_order(records), set(count_run(records).untrained)

    def choose_trained(name: str) -> str:
        smaller = order[: order.index(name)] if name in untrained else []
        return next((other for other in reversed(smaller) if other not in untrained), name)

    return {
        agent: choose_trained(plain.get(name, name))
        for agent, name in records.read_last_submodels().items()
    }


def assign_missing(
    item: Item[Version, Serving], trained: Mapping[str, str], order: Sequence[str]
) -> tuple[Item[Version, Serving], list[str]]:
    """Assign a submodel of a version to the agents whose own one it lacks: the submodel of this
    version that the agent served before, else the largest one that is not larger than its own.

    trained: the submodel that each agent should serve. order: the run's submodels, smallest first.
    Returns the item with these assignments, and a sentence for each; an agent for which there is
    none stays without one.
    """
    version, notes = item.version, list[str]()
    served = {
        agent: report.submodel
        for agent, report in item.reports.items()
        if report.version == version.name and report.submodel in version.submodels
    }
    chosen = dict(version.assignment)
    for agent in sorted({*trained, *served} - chosen.keys()):
        own = trained.get(agent, "")
        upto = order[: order.index(own) + 1] if own in order else (own,)
        fitting = [name for name in upto if name in version.submodels]
        if agent in served:
            chosen[agent], why = served[agent], "which it served of this version before"
        elif fitting:
            chosen[agent] = fitting[-1]
            why = f"the largest one that is not larger than its {own}"
        else:
            continue
        notes.append(
            f"version {version.name} named no submodel for {agent}: it gets {chosen[agent]}, {why}"
        )
    return replace(item, version=replace(version, assignment=chosen)), notes
