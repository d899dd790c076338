"""Read an experiment: a TOML file in `benchmarks/experiments` with the rows and columns of one
table of a paper. A cell of the table is one simulation per seed.

    paper = "Kang et al., NeFL (arXiv 2308.07761)"
    table = "Table III"
    scores = {worst = "worst", average = "mean"}    # the title of each score of a cell
    settings = {rounds = 500, train.lr = 0.1}       # as in a file of `coordinator simulate`
    columns = [{name = "CIFAR-10", settings = {data.name = "cifar10"}}]
    rows = [
      {name = "HeteroFL", settings = {method.name = "heterofl"}, paper = [[80.62, 84.26]]},
    ]
    [scales.full]
    [scales.small]
    settings = {rounds = 20}
    central.settings = {rounds = 8, simulate.agents = 1, method.name = "fedavg"}

The settings of a cell are those of the experiment, its column, its row and the scale; later ones
override earlier ones. `central` adds a row: a single device that has the data of all, as the
accuracy to compare with. `choices` lists settings of which each cell takes those with the best
`validation` score, and a score such as `worst within bytes` is that after equally many bytes as
every other row (see `equal_conditions`). `like = "nefl-table3"` takes all that a file does not
state from another one, also within the tables `settings` and `scales`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.settings.config import flatten, read_toml
from federated.errors import ConfigError, Unknown
from federated.settings_validation import Record, Seed, validate

__all__ = [
    "CENTRAL",
    "FOLDER",
    "WITHIN",
    "Cell",
    "Experiment",
    "find_experiment",
    "list_experiments",
]

WITHIN = " within "  # between a score and the cost that is equal for all rows
FOLDER = Path(__file__).parents[1] / "experiments"

Share = Annotated[float, Meta(gt=0)]


class Part(Record, frozen=True):
    """What each part of an experiment can set.

    settings: of `coordinator simulate`, by table.
    groups: relative sizes of the groups of devices, in order. The groups train submodels of the
        method's menu at equal distances, from the smallest to the largest; empty: the method or
        the settings assign submodels. None: as the part before it.
    """

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    groups: tuple[Share, ...] | None = None


class Column(Part, frozen=True, kw_only=True):
    """The cells of one setting, such as a data set.

    name: title; empty if it is the only one.
    baseline: name of another column; this one then shows how far each score falls below its score
        there, such as the accuracy that an attack costs. Empty: the scores themselves.
    """

    name: str = ""
    baseline: str = ""


class Row(Part, frozen=True, kw_only=True):
    """The cells of one method.

    name: title.
    paper: the paper's numbers, a list for each column with one for each score; a list may be empty.
    flower: run by Flower.
    """

    name: str
    paper: tuple[tuple[float | str, ...], ...] = ()
    flower: bool = False


class Scale(Part, frozen=True, kw_only=True):
    """A size of the experiment.

    columns: names of the columns that it has; empty: all.
    rows: names of the rows that it has; empty: all.
    seeds: of each cell.
    central: settings of central training, beyond those of the scale; None: no such row.
    note: what to know about its results.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1)] = (0,)
    central: Part | None = None
    note: str = ""


MERGED = ("settings", "scales")  # tables of which an experiment `like` another states changes
CENTRAL = Row(name="central training")


class Experiment(Part, frozen=True, kw_only=True):
    """One table of a paper.

    name: of the file.
    paper: authors, title or number of the paper; empty: the table is of no paper.
    table: the table in the paper.
    note: how the experiment differs from the paper.
    scores: title -> score of a run (see `docs/simulation.md`); VIEW/GROUP or VIEW/GROUP/METRIC: the
        mean accuracy or other metric of a group of devices in a view, such as `after/0`, of all
        devices without a GROUP, or their accuracy after another epoch (`fine-tuned/0`); a cost
        (see `run_costs`); or ANALYSIS:PANEL/ROW, the mean of a row of an analysis (see
        `benchmarks.analyses.named_analyses`).
    largest_first: the first group trains the largest submodel.
    columns, rows: of the table.
    choices: settings to choose from; each cell is simulated with each of them. Empty: no choice.
    validation: score by which a cell's settings are chosen, such as `before`: accuracies on the
        devices' held-out data, which are not in the test set.
    scales: by name.
    """

    name: str
    paper: str = ""
    table: str
    note: str = ""
    scores: dict[str, str]
    largest_first: bool = False
    columns: tuple[Column, ...] = (Column(),)
    rows: tuple[Row, ...]
    choices: tuple[Part, ...] = ()
    validation: str = ""
    scales: dict[str, Scale]

    def find_scale(self, name: str, settings: Sequence[tuple[str, Any]] = ()) -> Scale:
        """Return a scale, with more settings. Raises Unknown."""
        if name not in self.scales:
            raise Unknown("scale", name, self.scales)
        scale = self.scales[name]
        return msgspec.structs.replace(scale, settings=scale.settings | dict(settings))

    def list_cells(self, chosen: Scale, seeds: Sequence[int] = ()) -> list[Cell]:
        """Return the simulations of a scale, row by row. seeds: instead of the scale's own."""
        return [
            Cell(self, row, column, chosen, seed, choice)
            for row in (*self.rows, *([CENTRAL] if chosen.central else []))
            for column in self.columns
            if row is CENTRAL or not chosen.rows or row.name in chosen.rows
            if row is not CENTRAL or not column.baseline
            if not chosen.columns or column.name in chosen.columns
            for choice in self.choices or (Part(),)
            for seed in seeds or chosen.seeds
        ]

    def find_paper(self, row: Row, column: Column) -> dict[str, float | str]:
        """Return the paper's numbers of a cell by the title of the score."""
        numbers = dict(zip((one.name for one in self.columns), row.paper, strict=False))
        return dict(zip(self.scores, numbers.get(column.name, ()), strict=False))


@dataclass(frozen=True)
class Cell:
    """One simulation of a table."""

    experiment: Experiment
    row: Row
    column: Column
    scale: Scale
    seed: int
    choice: Part = field(default_factory=Part)

    @property
    def parts(self) -> tuple[Part, ...]:
        central = self.scale.central if self.row is CENTRAL else None
        return (
            self.experiment,
            self.column,
            self.row,
            self.scale,
            *([central] if central else []),
            self.choice,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Keys and values of all settings."""
        return {key: value for part in self.parts for key, value in flatten(part.settings)}

    @property
    def groups(self) -> tuple[float, ...]:
        if self.row is CENTRAL:
            return ()
        return next((p.groups for p in reversed(self.parts) if p.groups is not None), ())

    @property
    def title(self) -> str:
        chosen = " ".join(f"{key}={value}" for key, value in flatten(self.choice.settings))
        parts = (self.row.name, self.column.name, chosen, f"seed {self.seed}")
        return ", ".join(filter(None, parts))

    @property
    def run(self) -> str:
        """Name of its run, which is another one after its settings were changed."""
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.row.name} {self.column.name}".lower()).strip("-")
        found = msgspec.json.encode([self.settings, self.groups])
        return f"{slug}-{sha256(found).hexdigest()[:8]}"


def list_experiments() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name. Raises Unknown; ConfigError if its file is wrong."""
    if name not in list_experiments():
        raise Unknown("experiment", name, list_experiments())
    path = FOLDER / f"{name}.toml"
    where = f"experiment {path}"
    tree = read_toml(path)
    if "like" in tree:
        other = tree.pop("like")
        if other not in list_experiments():
            raise ConfigError(f"{where}: like: {Unknown('experiment', other, list_experiments())}")
        base = read_toml(FOLDER / f"{other}.toml")
        common = {key: merge_tables(base.get(key, {}), tree.get(key, {})) for key in MERGED}
        tree = {**base, **tree, **common}
    experiment = validate(Experiment, {"name": name} | tree, where)
    check_names(experiment, where)
    return experiment


def merge_tables(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables with changes: a value replaces another, and a table is merged."""
    merged = {
        key: merge_tables(base[key], value)
        for key, value in more.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **more, **merged}


def check_names(experiment: Experiment, where: str) -> None:
    """Raise ConfigError for rows or columns of one name, for names that a scale has and the table
    has not, and for a row with a wrong number of the paper's numbers.
    """
    rows = [row.name for row in experiment.rows]
    columns = [column.name for column in experiment.columns]
    for names in (rows, columns):
        if len(set(names)) < len(names):
            raise ConfigError(f"{where}: expected different names, found {', '.join(names)}")
    if experiment.choices and not experiment.validation:
        raise ConfigError(f"{where}: choices: expected a validation score, such as 'before'")
    baselines = [column.baseline for column in experiment.columns if column.baseline]
    for scale in experiment.scales.values():
        for given, known in ((scale.rows, rows), (scale.columns, columns), (baselines, columns)):
            for name in given:
                if name not in known:
                    raise ConfigError(f"{where}: {Unknown('row or column', name, known)}")
    for row in experiment.rows:
        lengths = [len(numbers) for numbers in row.paper]
        if lengths and (
            len(lengths) != len(columns) or not {*lengths} <= {0, len(experiment.scores)}
        ):
            raise ConfigError(
                f"{where}: row '{row.name}': expected {len(columns)} lists of "
                f"{len(experiment.scores)} numbers of the paper, found {lengths}"
            )
