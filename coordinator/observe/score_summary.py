"""From tallies to scores: of all devices together, of each one, of a submodel before and after
local training; and what they sum up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from coordinator.observe.records import Score
from federated.engine.tallies import Tallies, Tally, add, metrics
from models.submodel import Submodel

__all__ = [
    "Found",
    "best_view",
    "of_devices",
    "of_training",
    "overall",
    "reached",
    "score",
    "summary",
    "unique",
    "untrained",
]

Found = Sequence[tuple[Submodel, str, Tallies]]
"""Submodel, agent, and that agent's tallies by view."""


def score(submodel: Submodel, view: str, tally: Tally, agent: str = "") -> Score:
    """The score that a tally of at least one example says."""
    found = metrics(tally, submodel.network)
    return Score(
        submodel.name, view, found["accuracy"], found["loss"], int(tally["count"][0]), agent, found
    )


def of_devices(found: Found) -> list[Score]:
    """Scores `devices`, `labels` and `devices/exit0`: of all devices together, and of each."""
    return named(found, {"all": "devices", "labels": "labels"}, exits="devices/")


def of_training(found: Found) -> list[Score]:
    """Scores `before` and `after` local training: of all devices together, and of each."""
    return named(found, {"before": "before", "after": "after"}, exits="")


def named(found: Found, names: Mapping[str, str], exits: str) -> list[Score]:
    made = []
    for submodel, several in groupby(
        sorted(found, key=lambda f: (f[0].name, f[1])), key=lambda f: f[0]
    ):
        tallies = [(agent, by_view) for _, agent, by_view in several]
        for view in dict.fromkeys(view for _, by_view in tallies for view in by_view):
            name = names.get(view, exits + view)
            made.append(
                score(
                    submodel, name, add(by_view[view] for _, by_view in tallies if view in by_view)
                )
            )
            if view in names:
                made += [
                    score(submodel, name, by_view[view], agent)
                    for agent, by_view in tallies
                    if view in by_view
                ]
    return made


def best_view(scores: Iterable[Score]) -> str:
    """The view that counts: the coordinator's own data where it has some."""
    return "central" if any(s.view == "central" for s in scores) else "devices"


def overall(scores: Sequence[Score], view: str = "") -> list[Score]:
    """The scores of a view, the one that counts unless named, of all its examples together: one per
    submodel.
    """
    view = view or best_view(scores)
    return [s for s in scores if s.view == view and not s.agent]


def reached(scores: Sequence[Score], menu: Sequence[Submodel], target: float) -> bool:
    """Whether the largest submodel that was evaluated has the wanted accuracy, on the coordinator's
    data where it has some.
    """
    if not target or not scores:
        return False
    by_name = {s.submodel: s.accuracy for s in overall(scores)}
    largest = [by_name[m.name] for m in unique(menu) if m.name in by_name]
    return bool(largest) and largest[-1] >= target


def unique(menu: Sequence[Submodel]) -> list[Submodel]:
    """Each network of a menu once: branches are merged before anyone evaluates."""
    return list(dict.fromkeys(submodel.plain for submodel in menu))


def untrained(scores: Sequence[Score]) -> list[str]:
    """The submodels among these scores that no update of the run trained."""
    return list(dict.fromkeys(s.submodel for s in scores if s.trained_updates == 0))


def summary(
    scores: Sequence[Score], menu: Sequence[Submodel], assigned: Mapping[str, Submodel]
) -> dict[str, float]:
    """The numbers that papers print, of those that the scores hold.

    global: the largest submodel's; worst and mean: over all submodels (NeFL); local: with absent
    classes masked (HeteroFL); before and after local training; strong and weak: after it, the mean
    over devices with the largest submodel in use and over all others (RecipFL); metrics of the
    largest (macro_f1, perplexity, rmse, ...). Of devices, those of the submodel that each carries
    (had last) count, as it was last scored.
    """
    order = {submodel.name: index for index, submodel in enumerate(menu)}
    main = sorted(overall(scores), key=lambda s: order.get(s.submodel, -1))
    found: dict[str, float] = {}
    if main:
        found = {
            "global": main[-1].accuracy,
            "worst": min(s.accuracy for s in main),
            "mean": mean(s.accuracy for s in main),
            "loss": main[-1].loss,
        }
        found |= {
            name: value
            for name, value in main[-1].metrics.items()
            if name not in {"accuracy", "loss"}
        }
    for name, view in (("local", "labels"), ("before", "before"), ("after", "after")):
        if several := [s.accuracy for s in carried(scores, view, assigned)]:
            found[name] = mean(several)
    return found | capacities(carried(scores, "after", assigned), order, assigned)


def carried(scores: Sequence[Score], view: str, assigned: Mapping[str, Submodel]) -> list[Score]:
    """The scores of devices with the submodel that each carries: of one that it had before, there
    may be old ones.
    """
    return [
        s
        for s in scores
        if s.view == view and s.agent in assigned and s.submodel == assigned[s.agent].plain.name
    ]


def capacities(
    after: Sequence[Score], order: Mapping[str, int], assigned: Mapping[str, Submodel]
) -> dict[str, float]:
    """Of one network that some devices train with more branches than others (DynamicFL), those with
    most are the strong ones.
    """
    places = {s.agent: order.get(assigned[s.agent].name, -1) for s in after}
    if len(set(places.values())) < 2:
        return {}
    largest = max(places.values())
    return {
        "strong": mean(s.accuracy for s in after if places[s.agent] == largest),
        "weak": mean(s.accuracy for s in after if places[s.agent] != largest),
    }


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
