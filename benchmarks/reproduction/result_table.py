"""Write a table of results beside the paper's numbers, as text, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.reproduction.cells import Finished
from benchmarks.reproduction.experiment import Experiment
from federated.safe_terminal_table import make_table, render_table

__all__ = ["Entry", "collect_entries", "format_csv", "format_latex", "format_text"]

RAW = {"loss", "perplexity", "rmse"}  # scores that are not fractions
WIDE = 250  # characters of a line


@dataclass(frozen=True)
class Entry:
    """A number of the table.

    row, column: their names.
    score: its title.
    values: of the seeds; accuracies in percent.
    paper: the paper's number; empty if it has none.
    """

    row: str
    column: str
    score: str
    values: tuple[float, ...]
    paper: str

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
        spread = f"{between}{self.deviation:.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread}"


def collect_entries(experiment: Experiment, found: Sequence[Finished]) -> list[Entry]:
    """Return the numbers of a table row by row, without rows and columns that have no result."""
    rows = [row for row in experiment.rows if any(one.row == row.name for one in found)]
    columns = [c for c in experiment.columns if any(one.column == c.name for one in found)]
    return [
        Entry(
            row.name,
            column.name,
            title,
            tuple(
                one.scores[score] * (1 if score in RAW else 100)
                for one in found
                if (one.row, one.column) == (row.name, column.name) and score in one.scores
            ),
            str(experiment.find_paper(row, column).get(title, "")),
        )
        for row in rows
        for column in columns
        for title, score in experiment.scores.items()
    ]


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
    return "\n".join(filter(None, (*head, render_table(table, WIDE, styled=False))))


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
