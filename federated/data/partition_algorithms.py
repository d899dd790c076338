"""Split examples among agents in different ways. Each function returns one array of indices per
agent; the arrays are disjoint, cover all examples, and hold at least 2 each.
"""

from __future__ import annotations

import numpy as np

from federated.data.dataset import Indices, Labels
from federated.errors import DataError

__all__ = [
    "LEAST",
    "split_by_classes",
    "split_by_dirichlet",
    "split_by_strength",
    "split_by_user",
    "split_equally",
    "split_unequally",
]

LEAST = 2  # examples per agent: one to train on, one held out
DRAWS = 200  # attempts before a minimum counts as unreachable

Split = list[Indices]


def split_equally(n: int, agents: int, rng: np.random.Generator) -> Split:
    """Return equal parts of a shuffle; sizes differ by at most 1. DataError: there are too few
    examples.
    """
    _check_size(n, agents, LEAST)
    return [np.sort(part) for part in np.array_split(rng.permutation(n), agents)]


def split_unequally(kinds: Labels, agents: int, ratio: float, rng: np.random.Generator) -> Split:
    """Return parts of sizes between `ratio` and 1 of the largest, each with about its share of
    every kind (FedFA's IID: n_min >= n_max / 2).

    DataError: 200 draws gave no such sizes, or an agent would lack a kind.
    """
    _check_size(len(kinds), agents, LEAST)
    what = f"partition iid:{ratio:g} of {len(kinds)} examples over {agents} agents"
    for _ in range(DRAWS):
        weights = rng.uniform(ratio, 1, agents)
        sizes = np.diff(
            np.round(np.cumsum([0.0, *weights]) / weights.sum() * len(kinds)).astype(np.intp)
        )
        if sizes.min() >= max(LEAST, ratio * sizes.max()):
            break
    else:
        raise DataError(
            f"{what}: expected the smallest part to be at least {ratio:g} of the largest, found no "
            f"such split in {DRAWS} draws; use a smaller ratio"
        )
    shuffled = rng.permutation(len(kinds))
    order = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    # each agent takes turns at even distances
    turns = np.concatenate([(np.arange(size) + rng.random()) / size for size in sizes])
    owner = np.repeat(np.arange(agents), sizes)[np.argsort(turns, kind="stable")]
    parts = [np.sort(order[owner == agent]) for agent in range(agents)]
    for agent, part in enumerate(parts):
        lacking = np.setdiff1d(kinds, kinds[part])
        if len(lacking):
            raise DataError(
                f"{what}: expected every class on every agent, found none of class "
                f"{lacking[0]} on agent {agent}"
            )
    return parts


def split_by_dirichlet(
    y: Labels,
    agents: int,
    alpha: float,
    rng: np.random.Generator,
    minimum: int = LEAST,
    *,
    balanced: bool = False,
) -> Split:
    """Return parts with the proportions of each class over agents drawn from Dirichlet(alpha)
    (Yurochkin et al. 2019, arXiv:1905.12022, section 4).

    All classes are drawn again until every agent has at least `minimum` examples.

    balanced: an agent that has its share of all examples gets no more of the next classes
        (NIID-Bench, Li et al. 2021, arXiv:2102.02079; the authors' code)
    DataError: there are too few examples, or 200 draws did not reach the minimum
    """
    _check_size(len(y), agents, minimum)
    smallest, where = -1, 0
    for _ in range(DRAWS):
        parts = _draw(y, agents, alpha, rng, balanced)
        sizes = [len(part) for part in parts]
        if min(sizes) >= minimum:
            return parts
        if min(sizes) > smallest:
            smallest, where = min(sizes), sizes.index(min(sizes))
    raise DataError(
        f"partition dirichlet:{alpha:g} of {len(y)} examples over {agents} agents: "
        f"expected at least {minimum} per agent, "
        f"found at most {smallest}, for agent {where}, in {DRAWS} draws; use a larger "
        "alpha or fewer agents"
    )


def split_by_classes(y: Labels, agents: int, classes: int, rng: np.random.Generator) -> Split:
    """Return parts with exactly `classes` classes each. The holders of a class share it equally,
    and classes have equally many holders (to 1).

    The label skew of HeteroFL (arXiv:2010.01264, section 4). DataError: the agents cannot hold all
    classes, or a class has fewer examples than holders.
    """
    present, counts = np.unique(y, return_counts=True)
    what = f"partition classes:{classes} of {len(present)} classes over {agents} agents"
    if not 1 <= classes <= len(present) or agents * classes < len(present):
        raise DataError(
            f"{what}: expected 1 to {len(present)} classes per agent, and "
            f"{len(present)} or more in all, found {classes} and {agents * classes}"
        )
    holders = _choose_holders(len(present), agents, classes, rng)
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    for c, count, agents_of_c in zip(present, counts, holders, strict=True):
        if count < len(agents_of_c):
            raise DataError(
                f"{what}: expected at least {len(agents_of_c)} examples of class {c}, found {count}"
            )
        shuffled = rng.permutation(np.flatnonzero(y == c))
        for agent, part in zip(
            agents_of_c, np.array_split(shuffled, len(agents_of_c)), strict=True
        ):
            parts[agent].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def split_by_user(users: Labels, agents: int) -> Split:
    """Return one person per agent, in the order of their numbers. With fewer agents than people,
    the person with the most examples left goes to the agent with the fewest. DataError: there are
    more agents than people.
    """
    people, counts = np.unique(users, return_counts=True)
    if not 1 <= agents <= len(people):
        raise DataError(
            f"partition users of {len(people)} people over {agents} agents: expected 1 "
            f"to {len(people)} agents, found {agents}"
        )
    if agents == len(people):
        return [np.flatnonzero(users == person) for person in people]
    theirs: list[list[int]] = [[] for _ in range(agents)]
    sizes = [0] * agents
    for p in np.argsort(-counts, kind="stable"):
        agent = sizes.index(min(sizes))
        theirs[agent].append(int(people[p]))
        sizes[agent] += int(counts[p])
    return [np.flatnonzero(np.isin(users, mine)) for mine in theirs]


def split_by_strength(
    y: Labels, agents: int, strong: int, alpha: float, rng: np.random.Generator
) -> Split:
    """Return half of the examples, split equally, for the first `strong` agents, and the rest by
    Dirichlet(alpha) for the others (RecipFL).

    DataError: no agents are left for the rest, or as in `split_equally` and `split_by_dirichlet`.
    """
    if agents <= strong:
        raise DataError(
            f"partition skewed:{strong}:{alpha:g}: expected more agents than the "
            f"{strong} strong ones, found {agents}"
        )
    shuffled = rng.permutation(len(y))
    half, rest = shuffled[: len(y) // 2], np.sort(shuffled[len(y) // 2 :])
    first = [np.sort(half[part]) for part in split_equally(len(half), strong, rng)]
    return [
        *first,
        *(rest[part] for part in split_by_dirichlet(y[rest], agents - strong, alpha, rng)),
    ]


def _check_size(n: int, agents: int, minimum: int) -> None:
    if agents < 1 or n < agents * minimum:
        raise DataError(
            f"{n} examples over {agents} agents: expected at least 1 agent, and "
            f"{minimum} examples for each, {agents * minimum} in all"
        )


def _draw(y: Labels, agents: int, alpha: float, rng: np.random.Generator, balanced: bool) -> Split:
    parts: list[list[Indices]] = [[] for _ in range(agents)]
    sizes = np.zeros(agents)
    for c in np.unique(y):
        shuffled = rng.permutation(np.flatnonzero(y == c))
        shares = rng.dirichlet(np.full(agents, alpha))
        if balanced:
            shares = np.maximum(shares, np.finfo(float).tiny) * (sizes < len(y) / agents)
            shares /= shares.sum()
        cuts = np.round(np.cumsum(shares)[:-1] * len(shuffled)).astype(np.intp)
        for agent, part in enumerate(np.split(shuffled, cuts)):
            parts[agent].append(part)
            sizes[agent] += len(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _choose_holders(
    present: int, agents: int, classes: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the agents of each class: each agent takes the classes with the fewest holders so far,
    ties at random.
    """
    holders: list[list[int]] = [[] for _ in range(present)]
    for agent in range(agents):
        ties = rng.permutation(present)
        fewest = sorted(ties.tolist(), key=lambda c: len(holders[c]))
        for c in fewest[:classes]:
            holders[c].append(agent)
    return holders
