"""Write a table of results beside the paper's numbers, as text, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.reproduction.cells import Finished
from benchmarks.reproduction.equal_conditions import choose_settings, score_within
from benchmarks.reproduction.experiment import CENTRAL, WITHIN, Column, Experiment, Row
from benchmarks.reproduction.run_costs import COSTS
from federated.safe_terminal_table import make_table, render_table

__all__ = ["Entry", "collect_entries", "format_csv", "format_latex", "format_text"]

RAW = {"loss", "perplexity", "rmse"}  # scores that are not fractions; less is better
ENOUGH = 0.9  # of the accuracy of central training: below, a comparison of rows says little
WIDE = 250  # characters of a line


@dataclass(frozen=True)
class Entry:
    """A number of the table.

    row, column: their names.
    score: its title.
    values: of the seeds; accuracies, and their drops below the baseline, in percent.
    paper: the paper's number; empty if it has none.
    kind: a fraction (in percent), raw (less is better), or other.
    """

    row: str
    column: str
    score: str
    values: tuple[float, ...]
    paper: str
    kind: Literal["fraction", "raw", "other"] = "fraction"

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; 0 for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def title(self) -> str:
        """Title of its column."""
        return " ".join(filter(None, (self.column, self.score)))

    def format_ours(self, between: str = " ± ") -> str:
        """Return mean and deviation; "-" without a result. between: of the two numbers."""
        if self.mean is None:
            return "-"
        form = ".3g" if self.kind == "other" else ".1f"
        spread = f"{between}{self.deviation:{form}}" if len(self.values) > 1 else ""
        return f"{self.mean:{form}}{spread}"


def collect_entries(experiment: Experiment, found: Sequence[Finished]) -> list[Entry]:
    """Return the numbers of a table row by row, without rows and columns that have no result."""
    found = choose_settings(experiment, found)
    known = (*experiment.rows, CENTRAL)
    rows = [row for row in known if any(one.row == row.name for one in found)]
    columns = [c for c in experiment.columns if any(one.column == c.name for one in found)]
    return [
        make_entry(experiment, found, (row, column), (title, score))
        for row in rows
        for column in columns
        for title, score in experiment.scores.items()
    ]


def make_entry(
    experiment: Experiment,
    found: Sequence[Finished],
    place: tuple[Row, Column],
    titled: tuple[str, str],
) -> Entry:
    """Return the number of a row and column for a score with its title."""
    (row, column), (title, score) = place, titled
    values = select_values(found, row.name, column.name, score)
    paper, kind = str(experiment.find_paper(row, column).get(title, "")), find_kind(score)
    if column.baseline:
        before = select_values(found, row.name, column.baseline, score)
        values = {seed: before[seed] - value for seed, value in values.items() if seed in before}
        title, kind = f"{title} drop", "other"
    return Entry(row.name, column.name, title, tuple(values.values()), paper, kind)


def select_values(found: Sequence[Finished], row: str, column: str, score: str) -> dict[int, float]:
    """Return a score of each seed; accuracies in percent."""
    factor = 100 if find_kind(score) == "fraction" else 1
    values = {
        one.seed: score_within(found, one, score) if WITHIN in score else one.scores.get(score)
        for one in found
        if (one.row, one.column) == (row, column)
    }
    return {seed: value * factor for seed, value in values.items() if value is not None}


def find_kind(score: str) -> Literal["fraction", "raw", "other"]:
    if score.rpartition("/")[2] in RAW:
        return "raw"
    return "other" if score in COSTS.values() or ":" in score else "fraction"


def compare_with_central(entries: Sequence[Entry]) -> list[str]:
    """Return a sentence for each column: how close its best row came to central training."""
    lines = []
    for column in dict.fromkeys(entry.column for entry in entries):
        found = dict[str, float]()  # by score
        mine = [e for e in entries if e.column == column and e.mean and e.kind != "other"]
        for central in (e for e in mine if e.row == CENTRAL.name):
            rows = [e for e in mine if e.score == central.score and e is not central]
            ratios = [(e.mean or 0.0) / (central.mean or 1.0) for e in rows]
            if ratios:
                raw = central.kind == "raw"
                found[central.score] = 1 / min(ratios) if raw else max(ratios)
        if found:
            score = max(found, key=lambda one: found[one])
            lines.append(
                f"{column or 'best row'}: {found[score]:.0%} of {CENTRAL.name} ({score})"
                + ("" if found[score] >= ENOUGH else "; too little to rank the rows")
            )
    return lines


def arrange(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each row."""
    return {name: [e for e in entries if e.row == name] for name in {e.row: 0 for e in entries}}


def format_text(experiment: Experiment, entries: Sequence[Entry]) -> str:
    """Return the table for a terminal: each result, with the paper's number in brackets."""
    rows = arrange(entries)
    table = make_table("", *dict.fromkeys(entry.title for entry in entries))
    for name, several in rows.items():
        table.add_row(
            name, *(e.format_ours() + (f" ({e.paper})" if e.paper else "") for e in several)
        )
    head = [", ".join(filter(None, (experiment.paper, experiment.table))), experiment.note]
    drawn = render_table(table, WIDE, styled=False)
    return "\n".join(filter(None, (*head, drawn, *compare_with_central(entries))))


def format_csv(entries: Sequence[Entry]) -> str:
    """Return one line per number."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["row", "column", "score", "mean", "deviation", "seeds", "paper"])
    for e in entries:
        numbers = ["", ""] if e.mean is None else [f"{e.mean:.2f}", f"{e.deviation:.2f}"]
        lines.writerow([e.row, e.column, e.score, *numbers, len(e.values), e.paper])
    return text.getvalue()


def format_latex(experiment: Experiment, entries: Sequence[Entry]) -> str:
    """Return a `tabular` for the package booktabs, with the paper's numbers in brackets."""
    rows = arrange(entries)
    titles = [escape_latex(title) for title in dict.fromkeys(entry.title for entry in entries)]
    lines = [
        rf"{escape_latex(name)} & "
        + " & ".join(
            e.format_ours(r" $\pm$ ") + (f" ({escape_latex(e.paper)})" if e.paper else "")
            for e in several
        )
        + r" \\"
        for name, several in rows.items()
    ]
    head = [rf"\begin{{tabular}}{{l{'r' * len(titles)}}}", r"\toprule"]
    return "\n".join(
        [
            f"% {', '.join(filter(None, (experiment.paper, experiment.table)))}",
            *head,
            " & ".join(["", *titles]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return re.sub(r"([#$%&_{}])", r"\\\1", text).replace("±", r"$\pm$")
