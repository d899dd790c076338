"""Split a data set among agents with one of the rules below, draw the part of one agent alone, or
read parts from files.

iid                                    equal parts
iid:RATIO                              sizes from RATIO to 1 times the largest, with all classes
dirichlet:ALPHA[:MIN][:balanced]       class proportions drawn from Dirichlet(ALPHA)
classes:COUNT or classes:PERCENT%      this many classes for each agent
skewed:STRONG:ALPHA                    half for STRONG agents, the rest by Dirichlet
users                                  one person per agent
RULE@N                                 at most N random examples of each agent's part
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from federated.data import partition_algorithms
from federated.data.dataset import Dataset, Indices, Labels
from federated.data.held_out_splits import strata
from federated.errors import DataError, Unknown, UsageError
from federated.flag_and_argument_names import SHARD

__all__ = ["Shard", "count_kinds", "draw_shard", "parse", "read", "save", "seed_generator"]

Partition = Callable[[Dataset, int, np.random.Generator], list[Indices]]

DRAWN = 0.25  # fraction of the examples for an agent without a shard


def _parse_iid(argument: str) -> Partition:
    if not argument:
        return lambda dataset, agents, rng: partition_algorithms.split_equally(
            len(dataset.x), agents, rng
        )
    ratio = float(argument)
    if not 0 < ratio < 1:
        raise ValueError
    return lambda dataset, agents, rng: partition_algorithms.split_unequally(
        strata(dataset)[0], agents, ratio, rng
    )


def _parse_dirichlet(argument: str) -> Partition:
    first, *rest = argument.split(":")
    alpha = _parse_alpha(first)
    balanced = rest[-1:] == ["balanced"]
    minimum = int(rest.pop(0)) if rest[balanced:] else partition_algorithms.LEAST
    if minimum < partition_algorithms.LEAST or len(rest) != balanced:
        raise ValueError
    return lambda dataset, agents, rng: partition_algorithms.split_by_dirichlet(
        _read_classes(dataset), agents, alpha, rng, minimum, balanced=balanced
    )


def _parse_classes(argument: str) -> Partition:
    share = argument.endswith("%")
    wanted = float(argument[:-1]) / 100 if share else int(argument)
    if not (0 < wanted <= 1 if share else wanted >= 1):
        raise ValueError

    def split(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        y = _read_classes(dataset)
        count = max(1, round(wanted * len(dataset.labels))) if share else int(wanted)
        return partition_algorithms.split_by_classes(y, agents, count, rng)

    return split


def _parse_skewed(argument: str) -> Partition:
    first, second = argument.split(":")
    strong, alpha = int(first), _parse_alpha(second)
    if strong < 1:
        raise ValueError
    return lambda dataset, agents, rng: partition_algorithms.split_by_strength(
        _read_classes(dataset), agents, strong, alpha, rng
    )


def _parse_users(argument: str) -> Partition:
    if argument:
        raise ValueError

    def split(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        if dataset.users is None:
            raise DataError(
                f"partition users: {dataset.name} does not name the person of each example; use "
                "another partition"
            )
        return partition_algorithms.split_by_user(dataset.users, agents)

    return split


def _parse_alpha(text: str) -> float:
    """Return a concentration. ValueError: it is not above 0 and finite."""
    alpha = float(text)
    if not 0 < alpha < math.inf:
        raise ValueError
    return alpha


def _read_classes(dataset: Dataset) -> Labels:
    """Return the class of each example. DataError: the data have no classes."""
    if dataset.target != "class":
        fit = "iid, iid:0.5" + (" or users" if dataset.users is not None else "")
        raise DataError(
            f"{dataset.name}: expected a partition that needs no classes, {fit}, since its "
            f"targets are {dataset.target}s"
        )
    return strata(dataset)[0]


# name -> parser of its argument, and examples for an error, which puts them between quotes
PARTITIONS: dict[str, tuple[Callable[[str], Partition], str]] = {
    "classes": (_parse_classes, "classes:2' or 'classes:20%"),
    "dirichlet": (_parse_dirichlet, "dirichlet:0.5' or 'dirichlet:0.5:10:balanced"),
    "iid": (_parse_iid, "iid' or 'iid:0.5"),
    "skewed": (_parse_skewed, "skewed:1:0.5"),
    "users": (_parse_users, "users"),
}


def parse(text: str) -> Partition:
    """Return the partition of a name, as a function of data, agents and randomness. Unknown,
    UsageError: no such partition.

    The function raises DataError for data that it cannot split so that every agent has at least 2
    examples.
    """
    rule, at, most = text.partition("@")
    name, _, argument = rule.partition(":")
    if name not in PARTITIONS:
        raise Unknown("partition", name, PARTITIONS)
    make, example = PARTITIONS[name]
    if at and not (most.isdecimal() and int(most) >= partition_algorithms.LEAST):
        raise UsageError(
            f"partition '{text}': expected at least {partition_algorithms.LEAST} examples "
            f"per agent after '@', found '{most}'"
        )
    try:
        split = make(argument)
    except ValueError:
        numbers = ", with numbers above 0" if ":" in example else ""
        raise UsageError(f"partition '{text}': expected a form like '{example}'{numbers}") from None

    def split_checked(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        parts = split(dataset, agents, rng)
        if at:
            parts = [
                np.sort(rng.choice(part, int(most), replace=False))
                if len(part) > int(most)
                else part
                for part in parts
            ]
        for agent, part in enumerate(parts):
            if len(part) < partition_algorithms.LEAST:
                raise DataError(
                    f"partition {text} of {dataset.name} over {agents} agents: expected "
                    f"at least {partition_algorithms.LEAST} examples for each, "
                    f"found {len(part)} for agent {agent}"
                )
        return parts

    return split_checked


@dataclass(frozen=True)
class Shard:
    """One agent's part of a data set.

    index: number of the part, from 0
    of: number of parts
    partition: name of the partition
    seed: of the partition, shared by all agents
    """

    index: int
    of: int
    partition: str
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UsageError.naming(
                lambda spell: (
                    f"{spell(SHARD)} {self.index}/{self.of}: expected an index from 0 to "
                    f"{self.of - 1}, found {self.index}"
                )
            )
        parse(self.partition)

    @classmethod
    def parse(cls, text: str, partition: str, seed: int) -> Shard:
        """Return the shard `I/N`: part I (from 0) of N. UsageError: the text is malformed."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise UsageError.naming(
                lambda spell: (
                    f"{spell(SHARD)} '{text}': expected a form like '0/4', the first of four parts"
                )
            )
        return cls(int(index), int(of), partition, seed)

    def of_dataset(self, dataset: Dataset) -> Indices:
        """Return the training examples of this shard, ascending. DataError: the partition cannot
        split these data.
        """
        return parse(self.partition)(dataset, self.of, np.random.default_rng(self.seed))[self.index]


def draw_shard(dataset: Dataset, name: str) -> Indices:
    """Return a shard drawn from an agent's name alone, ascending: the examples of one person if the
    data name people, else a quarter of all, with class proportions from Dirichlet(1). Shards of two
    names may overlap.
    """
    rng = seed_generator(name, "shard")
    if dataset.users is not None:
        return np.flatnonzero(dataset.users == rng.choice(np.unique(dataset.users)))
    kinds = strata(dataset)[0]
    present, where, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    weights = (rng.dirichlet(np.ones(len(present))) / counts)[where]
    size = max(1, round(DRAWN * len(kinds)))
    return np.sort(rng.choice(len(kinds), size, replace=False, p=weights / weights.sum()))


def seed_generator(*words: str) -> np.random.Generator:
    """Return a random generator seeded by words, equal on every machine and in every process."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def count_kinds(dataset: Dataset, parts: Sequence[Indices]) -> npt.NDArray[np.int64]:
    """Return the number of examples of each kind on each agent, [agents, kinds]: classes, bins of
    the first value, or one column for texts.
    """
    kinds, columns = strata(dataset)
    return np.stack([np.bincount(kinds[part], minlength=columns) for part in parts]).astype(
        np.int64, copy=False
    )


def save(path: Path, dataset: Dataset, parts: Sequence[Indices], partition: str, seed: int) -> None:
    """Write the parts of a data set's training examples as JSON, with the rule and the seed that
    they were drawn with, and the digest of the data set.
    """
    record = {
        "data": dataset.name,
        "digest": _compute_digest(dataset),
        "partition": partition,
        "seed": seed,
        "agents": len(parts),
    }
    path.write_text(json.dumps(record | {"parts": [part.tolist() for part in parts]}) + "\n")


def read(path: Path, dataset: Dataset) -> list[Indices]:
    """Return the parts that `save` wrote. DataError: the file is missing, damaged, or of other
    data.
    """
    try:
        record = json.loads(path.read_text())
        name, digest = record["data"], record["digest"]
        parts = [np.array(part, np.intp) for part in record["parts"]]
        sound = bool(parts) and all(
            part.ndim == 1 and np.all((part >= 0) & (part < len(dataset.x))) for part in parts
        )
        sound = sound and len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, OverflowError, TypeError) as error:
        raise DataError(
            f"partition {path}: expected a file written by Espalier: "
            f"{type(error).__name__}: {error}"
        ) from error
    if digest != _compute_digest(dataset):
        raise DataError(
            f"partition {path}: expected a partition of {dataset.name} "
            f"({_compute_digest(dataset)[:12]}), found one of {name} ({str(digest)[:12]})"
        )
    if not sound:
        raise DataError(
            f"partition {path}: expected examples 0 to {len(dataset.x) - 1}, each on at most one "
            "agent"
        )
    return parts


def _compute_digest(dataset: Dataset) -> str:
    """Return the digest of the training examples and labels, without the name: equal data under
    another path are equal.
    """
    made = hashlib.sha256()
    for array in (dataset.x, dataset.y):
        made.update(f"{array.dtype.str} {array.shape}".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).data)
    return made.hexdigest()
