"""Ways to share one data set out among agents: lists of index arrays that are disjoint and cover it.

A partition is named `iid`, `dirichlet:ALPHA` or `classes:COUNT`; a `Shard` is one agent's part of one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from federated.data.dataset import Indices, Labels
from federated.errors import ConfigError, DataError, Unknown

__all__ = ["PARTITIONS", "Partition", "Shard", "classes_per_agent", "dirichlet", "drawn", "generator", "iid", "parse"]

Partition = Callable[[Labels, int, np.random.Generator], list[Indices]]

DRAWS = 200  # redraws before a minimum counts as out of reach
DRAWN = 0.25  # of the examples, for an agent that names no shard


def iid(y: Labels, agents: int, rng: np.random.Generator) -> list[Indices]:
    """Equal parts of a shuffle; sizes differ by at most 1. Raises DataError when there are fewer examples than agents."""
    _enough(y, agents, 1)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), agents)]


def dirichlet(y: Labels, agents: int, alpha: float, rng: np.random.Generator, minimum: int = 2) -> list[Indices]:
    """Per class, proportions over agents drawn from Dirichlet(alpha) (Yurochkin et al. 2019, arXiv:1905.12022, section 4).

    Drawn again, all classes at once, until every agent has at least `minimum` examples.
    Raises DataError when that cannot be, or did not happen in 200 draws.
    """
    _enough(y, agents, minimum)
    smallest = 0
    for _ in range(DRAWS):
        parts = _draw(y, agents, alpha, rng)
        found = min(len(part) for part in parts)
        if found >= minimum:
            return parts
        smallest = max(smallest, found)
    raise DataError(
        f"partition dirichlet:{alpha:g} of {len(y)} examples over {agents} agents: expected at least {minimum} for each, "
        f"found {smallest} at best in {DRAWS} draws; take a larger alpha or fewer agents"
    )


def classes_per_agent(y: Labels, agents: int, classes: int, rng: np.random.Generator) -> list[Indices]:
    """Each agent holds exactly `classes` classes; the holders of a class share it equally, and classes have equally many holders (to 1).

    The label skew of HeteroFL (arXiv:2010.01264, section 4). Raises DataError when the agents cannot hold all classes, or a class has
    fewer examples than holders.
    """
    present, counts = np.unique(y, return_counts=True)
    what = f"partition classes:{classes} of {len(present)} classes over {agents} agents"
    if not 1 <= classes <= len(present) or agents * classes < len(present):
        raise DataError(
            f"{what}: expected 1 to {len(present)} classes per agent, and {len(present)} or more in all, found {classes} and {agents * classes}"
        )
    holders = _holders(len(present), agents, classes, rng)
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for c, count, agents_of_c in zip(present, counts, holders, strict=True):
        if count < len(agents_of_c):
            raise DataError(f"{what}: expected at least {len(agents_of_c)} examples of class {c}, found {count}")
        shuffled = rng.permutation(np.flatnonzero(y == c))
        for agent, part in zip(agents_of_c, np.array_split(shuffled, len(agents_of_c)), strict=True):
            parts[agent].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def drawn(y: Labels, name: str) -> Indices:
    """A shard drawn from an agent's name alone: a quarter of the examples, class proportions from Dirichlet(1). Shards of two names may overlap."""
    rng = generator(name, "shard")
    present, where, counts = np.unique(y, return_inverse=True, return_counts=True)
    weights = (rng.dirichlet(np.ones(len(present))) / counts)[where]
    size = max(1, round(DRAWN * len(y)))
    return np.sort(rng.choice(len(y), size, replace=False, p=weights / weights.sum()))


def generator(*words: str) -> np.random.Generator:
    """A random generator from words, the same on every machine and in every process."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


@dataclass(frozen=True)
class Shard:
    """One agent's part: number `index` (from 0) of `of` parts of a partition, drawn with a seed that all agents share."""

    index: int
    of: int
    partition: str = "iid"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ConfigError(f"shard {self.index}/{self.of}: expected an index from 0 to {self.of - 1}, found {self.index}")
        parse(self.partition)

    @classmethod
    def parse(cls, text: str, partition: str = "iid", seed: int = 0) -> Shard:
        """The shard that `I/N` names: part I (from 0) of N. Raises ConfigError."""
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise ConfigError(f"shard '{text}': expected a form like '0/4', the first of four parts")
        return cls(int(index), int(of), partition, seed)

    def of_labels(self, y: Labels) -> Indices:
        """The examples of this shard, ascending. Raises DataError when the partition cannot be made of these labels."""
        return parse(self.partition)(y, self.of, np.random.default_rng(self.seed))[self.index]


def _iid(argument: str) -> Partition:
    if argument:
        raise ValueError
    return iid


def _dirichlet(argument: str) -> Partition:
    alpha = float(argument)
    if not 0 < alpha < math.inf:
        raise ValueError

    def split(y: Labels, agents: int, rng: np.random.Generator) -> list[Indices]:
        return dirichlet(y, agents, alpha, rng)

    return split


def _classes(argument: str) -> Partition:
    classes = int(argument)
    if classes < 1:
        raise ValueError

    def split(y: Labels, agents: int, rng: np.random.Generator) -> list[Indices]:
        return classes_per_agent(y, agents, classes, rng)

    return split


PARTITIONS: dict[str, tuple[Callable[[str], Partition], str]] = {
    "classes": (_classes, "classes:2"),
    "dirichlet": (_dirichlet, "dirichlet:0.5"),
    "iid": (_iid, "iid"),
}


def parse(text: str) -> Partition:
    """`iid`, `dirichlet:ALPHA` or `classes:COUNT` as a function of labels, agents and randomness. Raises Unknown or ConfigError."""
    name, _, argument = text.partition(":")
    if name not in PARTITIONS:
        raise Unknown("partition", name, PARTITIONS)
    make, example = PARTITIONS[name]
    try:
        return make(argument)
    except ValueError:
        raise ConfigError(f"partition '{text}': expected a form like '{example}'") from None


def _enough(y: Labels, agents: int, minimum: int) -> None:
    if agents < 1 or len(y) < agents * minimum:
        raise DataError(
            f"{len(y)} examples over {agents} agents: expected at least 1 agent, and {minimum} examples for each, {agents * minimum} in all"
        )


def _draw(y: Labels, agents: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for c in np.unique(y):
        shuffled = rng.permutation(np.flatnonzero(y == c))
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(agents, alpha)))[:-1] * len(shuffled)).astype(np.intp)
        for agent, part in enumerate(np.split(shuffled, cuts)):
            parts[agent].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _holders(present: int, agents: int, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Per class its agents: each agent takes the classes with the fewest holders so far, ties at random."""
    holders: list[list[int]] = [[] for _ in range(present)]
    for agent in range(agents):
        ties = rng.permutation(present)
        fewest = sorted(ties.tolist(), key=lambda c: len(holders[c]))
        for c in fewest[:classes]:
            holders[c].append(agent)
    return holders
