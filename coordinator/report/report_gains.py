"""The section of the report on what each device gained by taking part: the federated network beside
training alone and on all data, or what the devices reported themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.report.html_elements import (
    Html,
    escape,
    join_parts,
    make_list,
    make_paragraph,
    make_section,
    make_table,
    make_words,
)
from coordinator.settings.config_tables import AGENTS
from coordinator.simulate.device_data import SIMULATED
from coordinator.store.run_database_reader import RunRecords
from coordinator.views.run_status import read_config
from federated.runtime.unit_formatting import format_count

if TYPE_CHECKING:  # it loads PyTorch, which only --compare needs
    from coordinator.simulate.device_gains import Comparison

__all__ = ["describe_gains", "format_share", "mean"]

KINDS = ("alone", "federated", "central")
CLASSES = {"alone": "alone", "federated": "fed", "central": "central"}


def describe_gains(
    records: RunRecords,
    compared: Sequence[Comparison] | None,
    rows: Sequence[Mapping[str, Any]],
    more: Html,
) -> Html:
    title = "What each device gained"
    if compared is not None:
        return make_section(title, *describe_comparison(compared))
    scores = {
        (score.agent, score.submodel): (number, score)
        for number, score in records.read_all_scores()
        if score.view == "devices" and score.agent
    }
    plain = {one.unowned.name: one.plain.name for one in records.read_facts().menu}
    table = []
    for row in rows:
        submodel = row["submodel"].partition("@")[0]
        found = scores.get((row["agent"], plain.get(submodel, submodel)))
        if found:
            number, score = found
            shown = f"{score.accuracy:.1%}", score.examples, number
            table.append((row["agent"], row["submodel"], *shown))
    heads = ("device", "submodel", "accuracy (devices)", "held-out examples", "after round")
    reported = (
        [
            make_paragraph(
                "The devices themselves reported how well the federated network does on their "
                "own held-out data:"
            ),
            make_table(heads, table, "2 3 4"),
            more,
        ]
        if table
        else [make_paragraph("No device has evaluated the federated network on its own data.")]
    )
    return make_section(title, explain_absence(records, rows), *reported)


def explain_absence(records: RunRecords, rows: Sequence[Mapping[str, Any]]) -> Html:
    """Return why the page compares with no training alone or on all data."""
    what = "A comparison with the same network trained by each device alone, and on all data,"
    command = make_words(f"coordinator report {records.folder.name} --compare")
    if not rows or not records.rounds_done:
        return make_paragraph(f"{what} needs a finished round.")
    if all(row["profile"] and row["profile"]["host"] == SIMULATED for row in rows):
        return make_paragraph(
            f"{what} is not in this page, because it trains these networks again. ",
            command,
            " adds it.",
        )
    why = f"{what} is not possible here: data never leave the devices, so the coordinator cannot "
    why += "train on them."
    if read_config(records).data.name == AGENTS:
        return make_paragraph(why)
    return make_paragraph(
        why,
        " If the devices divided a data set that this machine has as the configuration states, as "
        "those of the demo do, ",
        command,
        " adds it.",
    )


def describe_comparison(compared: Sequence[Comparison]) -> Iterator[Html]:
    """Yield the comparison of the federated network with training alone and on all data."""
    if not compared:
        yield make_paragraph("No update of a device was folded, so there is nothing to compare.")
        return
    known = [one for one in compared if None not in (one.federated, one.alone)]
    means = [mean([getattr(one, kind) for one in compared]) for kind in KINDS]
    better = sum((one.federated or 0) > (one.alone or 0) for one in known)
    yield make_paragraph(
        f"{better} of {format_count(len(known), 'device')} gained from taking part. The mean "
        f"accuracy on a device's own held-out data is {format_share(means[1])} with the federated "
        f"network, {format_share(means[0])} if each device trains alone, and "
        f"{format_share(means[2])} if all data are in one place."
    )
    rows: list[tuple[object, ...]] = [
        (
            one.agent,
            format_gain(one.federated, one.alone),
            *(format_share(getattr(one, kind)) for kind in KINDS),
            draw_gain(one),
            one.submodel,
            one.examples,
            one.steps,
        )
        for one in compared
    ]
    shares = map(format_share, means)
    rows.append(("mean", format_gain(means[1], means[0]), *shares, "", "", "", ""))
    sizes = ("submodel", "examples", "steps")
    heads = ("device", "gain", *map(mark, KINDS), "0 to 100 %", *sizes)
    yield make_table(heads, rows, "1 2 3 4 7 8")
    yield make_list(
        [
            "Each accuracy is that of the same submodel on the device's own held-out examples, "
            "which nothing trained on.",
            "A device's own examples may be of a few classes only. Trained alone, a network knows "
            "only these; the federated network learns all classes of the fleet.",
            join_parts(
                [
                    mark("alone"),
                    " trains on the device's own data, with as many steps as the device took in "
                    "the run.",
                ]
            ),
            join_parts([mark("federated"), " has the weights after the run's last round."]),
            join_parts(
                [
                    mark("central"),
                    " trains on the training data of all devices, with as many steps as all "
                    "devices took together.",
                ]
            ),
            "Alone and central start from the run's initial weights, with the run's optimiser, "
            "batch size and learning rates, but without terms of the federated method.",
        ]
    )


def mark(kind: str) -> Html:
    """Return a kind of training with its dot in the drawings."""
    dot = f'<svg class="{CLASSES[kind]}" width="10" height="10"><circle cx="5" cy="5" r="4"/></svg>'
    return Html(f"{dot} {kind}")


def draw_gain(one: Comparison) -> Html:
    """Return a drawing of the accuracies of a device, on a line from 0 to 1."""
    dots = "".join(
        f'<circle class="{CLASSES[kind]}" cx="{6 + 164 * value:.1f}" cy="9" r="5"/>'
        for kind in ("central", "alone", "federated")
        if (value := getattr(one, kind)) is not None and value >= 0
    )
    line = '<line class="track" x1="6" y1="9" x2="170" y2="9"/>'
    return Html(f'<svg class="gain" viewBox="0 0 176 18" aria-hidden="true">{line}{dots}</svg>')


def format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def format_gain(federated: float | None, alone: float | None) -> Html:
    """Return the difference in percentage points."""
    if federated is None or alone is None:
        return escape("-")
    points = 100 * (federated - alone)
    kind = "good" if points > 0 else "bad" if points < 0 else ""
    return Html(f'<span class="{kind}">{points:+.1f}</span>')


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
