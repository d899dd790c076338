"""Compute scores from the sums that devices report (tallies), for each device and for all together,
and summarise and format them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.observe.round_records import Score
from federated.training.score_sums import Tallies, Tally, add, metrics
from models.submodel import Submodel

__all__ = [
    "VIEWS",
    "find_main_view",
    "format_metric",
    "is_target_reached",
    "list_networks",
    "list_untrained",
    "make_score",
    "name_headline_metrics",
    "scale_down",
    "score_devices",
    "score_training",
    "select_overall",
    "summarise",
]

DeviceTallies = Sequence[tuple[Submodel, str, Tallies]]
"""Submodel, agent, and that agent's tallies by view."""

VIEWS = {
    "central": "on the coordinator's own held-out data",
    "devices": "on the devices' held-out data, all devices together",
    "labels": "as `devices`, without the classes that a device lacks",
}
"""Meaning of each view, for people."""


def make_score(submodel: Submodel, view: str, tally: Tally, agent: str = "") -> Score:
    """Return the score of a tally of at least one example."""
    found = metrics(tally, submodel.network)
    return Score(
        submodel.name, view, found["accuracy"], found["loss"], int(tally["count"][0]), agent, found
    )


def score_devices(found: DeviceTallies, ratio: float = 0.0) -> list[Score]:
    """Return scores of the views `devices`, `labels` and `devices/exit...`, of all devices together
    and of each.

    ratio: see `add_limited`.
    """
    return score_views(found, {"all": "devices", "labels": "labels"}, "devices/", ratio)


def score_training(found: DeviceTallies, ratio: float = 0.0) -> list[Score]:
    """Return scores of the views `before` and `after`, of all devices together and of each.

    ratio: see `add_limited`.
    """
    return score_views(found, {"before": "before", "after": "after"}, "", ratio)


def score_views(
    found: DeviceTallies, names: Mapping[str, str], exits: str, ratio: float
) -> list[Score]:
    """Return scores by submodel and view.

    names: tally -> view.
    exits: prefix of other views.
    ratio: see `add_limited`.
    """
    scores = []
    ordered = sorted(found, key=lambda one: (one[0].name, one[1]))
    for submodel, group in groupby(ordered, key=lambda one: one[0]):
        devices = [(agent, by_view) for _, agent, by_view in group]
        for view in dict.fromkeys(view for _, by_view in devices for view in by_view):
            name = names.get(view, exits + view)
            tallies = {agent: by_view[view] for agent, by_view in devices if view in by_view}
            whole = add_limited(list(tallies.values()), ratio)
            scores.append(make_score(submodel, name, whole))
            if view in names:
                scores += [make_score(submodel, name, tally, a) for a, tally in tallies.items()]
    return scores


def add_limited(tallies: Sequence[Tally], ratio: float) -> Tally:
    """Return the sum of tallies, in which none counts with more than `ratio` times the median of
    their examples. 0: no limit.
    """
    if ratio:
        most = limit_counts((int(one["count"][0]) for one in tallies), ratio)
        tallies = [scale_down(one, most) for one in tallies]
    return add(tallies)


def scale_down(tally: Tally, most: int) -> Tally:
    """Return a tally scaled down to at most this many examples; its means stay the same."""
    if (count := tally["count"][0]) <= most:
        return tally
    return {name: [v * most / count for v in sums] for name, sums in tally.items()} | {
        "count": [most]
    }


def find_main_view(scores: Iterable[Score]) -> str:
    """Return the main view: the coordinator's own data if it has any, else the devices'."""
    return "central" if any(s.view == "central" for s in scores) else "devices"


def select_overall(scores: Sequence[Score]) -> list[Score]:
    """Return the scores of the main view over all its examples, one per submodel."""
    view = find_main_view(scores)
    return [s for s in scores if s.view == view and not s.agent]


def is_target_reached(scores: Sequence[Score], menu: Sequence[Submodel], target: float) -> bool:
    """Return True if the largest evaluated submodel reaches the target accuracy in the main view.
    If several devices were scored, it must also reach it with any one of them left out. A target
    of 0 is never reached.
    """
    if not target or not scores:
        return False
    by_name = {s.submodel: s for s in select_overall(scores)}
    largest = [by_name[m.name] for m in list_networks(menu) if m.name in by_name]
    return (
        bool(largest)
        and largest[-1].accuracy >= target
        and all(accuracy >= target for accuracy in leave_one_out(scores, largest[-1]))
    )


def leave_one_out(scores: Sequence[Score], overall: Score) -> list[float]:
    """Return the accuracies of all devices but one, each left out in turn; empty for fewer than
    two. They are approximate for R2, which is not a mean over devices.
    """
    devices = [
        s
        for s in scores
        if (s.submodel, s.view) == (overall.submodel, overall.view) and s.agent and s.examples
    ]
    if len(devices) < 2:
        return []
    most = limit_counts(s.examples for s in devices)
    rows = [(n := min(s.examples, most), n * s.accuracy) for s in devices]
    count, right = sum(n for n, _ in rows), sum(r for _, r in rows)
    return [(right - r) / (count - n) for n, r in rows]


def list_networks(menu: Sequence[Submodel]) -> list[Submodel]:
    """Return each network of a menu once: branches are merged before evaluation."""
    return list(dict.fromkeys(submodel.plain for submodel in menu))


def list_untrained(scores: Sequence[Score]) -> list[str]:
    """Return the scored submodels that no update of the run trained."""
    return list(dict.fromkeys(s.submodel for s in scores if s.trained_updates == 0))


def summarise(
    scores: Sequence[Score], menu: Sequence[Submodel], assigned: Mapping[str, Submodel]
) -> dict[str, float]:
    """Return the numbers that papers report, as far as there are scores for them.

    global: accuracy of the largest submodel.
    worst, mean: accuracy over all submodels (NeFL).
    loss and other metrics (macro_f1, perplexity, rmse, ...): of the largest submodel.
    local: accuracy on the devices with absent classes masked (HeteroFL).
    before, after: accuracy on the devices before and after local training.
    strong, weak: `after` of devices with the largest submodel in use, and of all others (RecipFL).

    A device counts with the latest score of the submodel that it had last (see `assigned`).
    """
    order = {submodel.name: index for index, submodel in enumerate(menu)}
    main = sorted(select_overall(scores), key=lambda s: order.get(s.submodel, -1))
    found: dict[str, float] = {}
    if main:
        metrics = main[-1].metrics.items()
        found = {
            "global": main[-1].accuracy,
            "worst": min(s.accuracy for s in main),
            "mean": mean(s.accuracy for s in main),
            "loss": main[-1].loss,
            **{name: value for name, value in metrics if name not in {"accuracy", "loss"}},
        }
    for name, view in (("local", "labels"), ("before", "before"), ("after", "after")):
        if several := [s.accuracy for s in select_current(scores, view, assigned)]:
            found[name] = mean(several)
    return found | compare_capacities(select_current(scores, "after", assigned), order, assigned)


def select_current(
    scores: Sequence[Score], view: str, assigned: Mapping[str, Submodel]
) -> list[Score]:
    """Return the scores of devices with the submodels that they have now."""
    return [
        s
        for s in scores
        if s.view == view and s.agent in assigned and s.submodel == assigned[s.agent].plain.name
    ]


def compare_capacities(
    after: Sequence[Score], order: Mapping[str, int], assigned: Mapping[str, Submodel]
) -> dict[str, float]:
    """Return the mean accuracy of the devices with the largest submodel (strong), and of all others
    (weak); empty if all have the same. If submodels differ only in their number of branches
    (DynamicFL), the largest is the one with the most.
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


def name_headline_metrics(scores: Sequence[Score]) -> dict[str, str]:
    """Return the main metrics of these scores, each with its title. For regression, accuracy is R2,
    the fraction of variance explained.
    """
    found = {name for s in scores for name in s.metrics}
    titles = {
        "accuracy": "R2" if "rmse" in found else "accuracy",
        "perplexity": "perplexity",
        "rmse": "rmse",
    }
    return {name: title for name, title in titles.items() if name in found}


def format_metric(metrics: Mapping[str, float], name: str) -> str:
    """Return accuracies with three decimals, other metrics with four digits (all digits of large
    numbers).
    """
    value = metrics.get(name)
    if value is None:
        return "-"
    if name == "accuracy":
        return f"{value:.3f}"
    return f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"
