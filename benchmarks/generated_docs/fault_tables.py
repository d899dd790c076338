"""Write the documentation's tables of the fault campaign, from its saved results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.faults.results import Campaign, Summary, read_campaigns
from benchmarks.faults.scenarios import SCENARIOS, explain_left_out
from benchmarks.generated_docs.markdown_table import render_table

__all__ = ["list_campaigns", "list_faults"]

HEADS = ("scenario", "runs", "lost", "doubled", "equal", "seconds until rounds go on", "commit")


def list_campaigns() -> Iterator[str]:
    """Yield the table with one row for each kind of broker."""
    heads = ("`--broker`", "tried", "scenarios", "runs", "lost", "doubled", "equal", "seconds")
    yield from render_table(heads, map(sum_up, read_campaigns()))


def sum_up(campaign: Campaign) -> tuple[str, ...]:
    rows = campaign.rows
    return (
        f"`{campaign.broker}`",
        campaign.version,
        str(len(rows)),
        *count(rows),
        f"up to {max(row.longest_s for row in rows):.0f}",
    )


def count(rows: Sequence[Summary]) -> tuple[str, str, str, str]:
    """Return runs, lost and doubled updates, and runs with an equal model."""
    runs = sum(row.runs for row in rows)
    return (
        str(runs),
        str(sum(row.lost_updates for row in rows)),
        str(sum(row.double_folded for row in rows)),
        f"{sum(row.equal for row in rows)} of {runs}",
    )


def list_faults() -> Iterator[str]:
    """Yield a section for each kind of broker."""
    for campaign in read_campaigns():
        known = {row.scenario: row for row in campaign.rows}
        yield from ("", f"## {campaign.broker}", "", describe(campaign), "")
        yield from render_table(
            HEADS,
            (
                format_row(known[name]) if name in known else (name, *explain(name, campaign))
                for name in SCENARIOS
            ),
        )
    yield ""


def describe(campaign: Campaign) -> str:
    machine = campaign.machine
    days = sorted({row.taken for row in campaign.rows})
    loads = sorted(row.load for row in campaign.rows)
    return (
        f"{campaign.version}. {format_span(days)}, {machine.processor}, "
        f"{machine.cpus:g} processors, load {format_span(f'{load:g}' for load in loads)}"
        f"{', forked' * all(row.forked for row in campaign.rows)}."
    )


def format_span(values: Iterable[str]) -> str:
    """Return the first and the last of these values, once if they are equal."""
    found = list(values)
    return " to ".join(dict.fromkeys((found[0], found[-1])))


def format_row(row: Summary) -> tuple[str, ...]:
    median, longest = f"{row.recovery_s:.1f}", f"{row.longest_s:.1f}"
    seconds = median if median == longest else f"{median} (at most {longest})"
    why = "".join(f"; {shorten(reason)}" for reason in row.why)
    return (row.scenario, *count([row]), seconds + why, row.commit[:8])


def shorten(reason: str) -> str:
    """Return the first line of a failure, without the seed."""
    return reason.partition(":")[2].strip().partition("\n")[0].replace("|", "/")


def explain(name: str, campaign: Campaign) -> tuple[str, ...]:
    """Return the cells of a scenario that was not run."""
    why = explain_left_out(name, campaign.broker)
    return "", "", "", "", f"left out: {why}" if why else "not run yet", ""
