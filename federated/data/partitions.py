"""Ways to share one data set out among agents, by name; one agent's part of one; and partitions
kept in files.

`iid`                        equal parts                `iid:RATIO`               sizes between
RATIO and 1 of the largest, of all classes `dirichlet:ALPHA[:MIN][:balanced]`  skewed classes
`classes:COUNT` or `classes:PERCENT%`  so many classes for each `skewed:STRONG:ALPHA`        half
for a few, the rest by Dirichlet                `users`  one person is one device
`RULE@N`                     at most N examples of each agent's part, drawn at random
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

from federated.data import splits
from federated.data.dataset import Dataset, Indices, Labels
from federated.data.strata import strata
from federated.errors import ConfigError, DataError, Unknown

__all__ = [
    "PARTITIONS",
    "Partition",
    "Shard",
    "counts",
    "drawn",
    "generator",
    "parse",
    "read",
    "save",
]

Partition = Callable[[Dataset, int, np.random.Generator], list[Indices]]

DRAWN = 0.25  # of the examples, for an agent that names no shard


def _iid(argument: str) -> Partition:
    if not argument:
        return lambda dataset, agents, rng: splits.equal(len(dataset.x), agents, rng)
    ratio = float(argument)
    if not 0 < ratio < 1:
        raise ValueError
    return lambda dataset, agents, rng: splits.unequal(strata(dataset)[0], agents, ratio, rng)


def _dirichlet(argument: str) -> Partition:
    first, *rest = argument.split(":")
    alpha = _alpha(first)
    balanced = rest[-1:] == ["balanced"]
    minimum = int(rest.pop(0)) if rest[balanced:] else splits.LEAST
    if minimum < splits.LEAST or len(rest) != balanced:
        raise ValueError
    return lambda dataset, agents, rng: splits.dirichlet(
        _classes_of(dataset), agents, alpha, rng, minimum, balanced=balanced
    )


def _classes(argument: str) -> Partition:
    share = argument.endswith("%")
    wanted = float(argument[:-1]) / 100 if share else int(argument)
    if not (0 < wanted <= 1 if share else wanted >= 1):
        raise ValueError

    def split(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        y = _classes_of(dataset)
        count = max(1, round(wanted * len(dataset.labels))) if share else int(wanted)
        return splits.classes_per_agent(y, agents, count, rng)

    return split


def _skewed(argument: str) -> Partition:
    first, second = argument.split(":")
    strong, alpha = int(first), _alpha(second)
    if strong < 1:
        raise ValueError
    return lambda dataset, agents, rng: splits.skewed(
        _classes_of(dataset), agents, strong, alpha, rng
    )


def _users(argument: str) -> Partition:
    if argument:
        raise ValueError

    def split(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        if dataset.users is None:
            raise DataError(
                "partition users: expected data that say whom each example is of, "
                f"{dataset.name} do not; take another"
            )
        return splits.by_user(dataset.users, agents)

    return split


def _alpha(text: str) -> float:
    alpha = float(text)
    if not 0 < alpha < math.inf:
        raise ValueError
    return alpha


def _classes_of(dataset: Dataset) -> Labels:
    if dataset.target != "class":
        fit = "iid, iid:0.5" + (" or users" if dataset.users is not None else "")
        raise DataError(
            f"{dataset.name}: expected a partition that needs no classes, {fit}, since "
            f"these data teach {dataset.target}s"
        )
    return strata(dataset)[0]


PARTITIONS: dict[str, tuple[Callable[[str], Partition], str]] = {
    "classes": (_classes, "classes:2' or 'classes:20%"),
    "dirichlet": (_dirichlet, "dirichlet:0.5' or 'dirichlet:0.5:10:balanced"),
    "iid": (_iid, "iid' or 'iid:0.5"),
    "skewed": (_skewed, "skewed:1:0.5"),
    "users": (_users, "users"),
}


def parse(text: str) -> Partition:
    """The partition of a name, as a function of data, agents and randomness. Raises Unknown or
    ConfigError.

    The function raises DataError for data that it cannot share out so that every agent has at least
    2 examples.
    """
    rule, at, most = text.partition("@")
    name, _, argument = rule.partition(":")
    if name not in PARTITIONS:
        raise Unknown("partition", name, PARTITIONS)
    make, example = PARTITIONS[name]
    if at and not (most.isdecimal() and int(most) >= splits.LEAST):
        raise ConfigError(
            f"partition '{text}': expected at least {splits.LEAST} examples for each "
            f"after '@', found '{most}'"
        )
    try:
        split = make(argument)
    except ValueError:
        raise ConfigError(f"partition '{text}': expected a form like '{example}'") from None

    def checked(dataset: Dataset, agents: int, rng: np.random.Generator) -> list[Indices]:
        parts = split(dataset, agents, rng)
        if at:
            parts = [
                np.sort(rng.choice(part, int(most), replace=False))
                if len(part) > int(most)
                else part
                for part in parts
            ]
        for agent, part in enumerate(parts):
            if len(part) < splits.LEAST:
                raise DataError(
                    f"partition {text} of {dataset.name} over {agents} agents: expected "
                    f"at least {splits.LEAST} examples for each, "
                    f"found {len(part)} for agent {agent}"
                )
        return parts

    return checked


@dataclass(frozen=True)
class Shard:
    """One agent's part: number `index` (from 0) of `of` parts of a partition, drawn with a seed
    that all agents share.
    """

    index: int
    of: int
    partition: str = "iid"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ConfigError(
                f"shard {self.index}/{self.of}: expected an index from 0 to "
                f"{self.of - 1}, found {self.index}"
            )
        parse(self.partition)

    @classmethod
    def parse(cls, text: str, partition: str = "iid", seed: int = 0) -> Shard:
        """The shard that `I/N` names: part I (from 0) of N. Raises ConfigError."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise ConfigError(
                f"shard '{text}': expected a form like '0/4', the first of four parts"
            )
        return cls(int(index), int(of), partition, seed)

    def of_dataset(self, dataset: Dataset) -> Indices:
        """The training examples of this shard, ascending. Raises DataError when the partition
        cannot be made of these data.
        """
        return parse(self.partition)(dataset, self.of, np.random.default_rng(self.seed))[self.index]


def drawn(dataset: Dataset, name: str) -> Indices:
    """A shard drawn from an agent's name alone, ascending: one person's examples where the data say
    whose they are, else a quarter of all, class proportions from Dirichlet(1). Shards of two names
    may overlap.
    """
    rng = generator(name, "shard")
    if dataset.users is not None:
        return np.flatnonzero(dataset.users == rng.choice(np.unique(dataset.users)))
    kinds = strata(dataset)[0]
    present, where, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    weights = (rng.dirichlet(np.ones(len(present))) / counts)[where]
    size = max(1, round(DRAWN * len(kinds)))
    return np.sort(rng.choice(len(kinds), size, replace=False, p=weights / weights.sum()))


def generator(*words: str) -> np.random.Generator:
    """A random generator from words, the same on every machine and in every process."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def counts(dataset: Dataset, parts: Sequence[Indices]) -> npt.NDArray[np.int64]:
    """How many examples of each kind each agent holds, [agents, kinds]: classes; bins of the first
    value; one column for texts.
    """
    kinds, columns = strata(dataset)
    return np.stack([np.bincount(kinds[part], minlength=columns) for part in parts]).astype(
        np.int64, copy=False
    )


def save(path: Path, dataset: Dataset, parts: Sequence[Indices], partition: str, seed: int) -> None:
    """Keeps the parts of a data set's training examples as JSON, with what they were drawn by and
    the digest of what they are parts of.
    """
    record = {
        "data": dataset.name,
        "digest": _digest(dataset),
        "partition": partition,
        "seed": seed,
        "agents": len(parts),
    }
    path.write_text(json.dumps(record | {"parts": [part.tolist() for part in parts]}) + "\n")


def read(path: Path, dataset: Dataset) -> list[Indices]:
    """The parts that `save` kept. Raises DataError where the file is missing or damaged, or is of
    other data than these.
    """
    try:
        record = json.loads(path.read_text())
        name, digest = record["data"], record["digest"]
        parts = [np.array(part, np.intp) for part in record["parts"]]
        whole = bool(parts) and all(
            part.ndim == 1 and np.all((part >= 0) & (part < len(dataset.x))) for part in parts
        )
        whole = whole and len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, OverflowError, TypeError) as error:
        raise DataError(
            f"partition {path}: expected a partition as this project keeps it: "
            f"{type(error).__name__}: {error}"
        ) from error
    if digest != _digest(dataset):
        raise DataError(
            f"partition {path}: expected one of {dataset.name} as it is here "
            f"({_digest(dataset)[:12]}), found one of {name} ({str(digest)[:12]})"
        )
    if not whole:
        raise DataError(
            f"partition {path}: expected lists of examples 0 to {len(dataset.x) - 1}, "
            "each on one agent, found others"
        )
    return parts


def _digest(dataset: Dataset) -> str:
    """Of the training examples and what they teach, not of the name: the same data under another
    path are the same.
    """
    made = hashlib.sha256()
    for array in (dataset.x, dataset.y):
        made.update(f"{array.dtype.str} {array.shape}".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).data)
    return made.hexdigest()
