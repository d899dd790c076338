"""Hold out examples for testing: a fraction of every class (or bin of values), the last recordings
of each person, or whole people.
"""

from __future__ import annotations

import numpy as np

from federated.data.dataset import Dataset, Indices, Labels
from federated.errors import DataError

__all__ = ["hold_out", "hold_out_last", "hold_out_users", "strata"]

BINS = 10  # bins with equally many examples, for values


def strata(dataset: Dataset) -> tuple[Labels, int]:
    """Return the kind of each training example, int64 [n], and the number of kinds.

    Kinds are the classes; for values ten bins with equally many examples by the first value; for
    texts a single one.
    """
    if dataset.target == "class":
        return dataset.y.astype(np.int64, copy=False), dataset.outputs
    if dataset.target == "token":
        return np.zeros(len(dataset.y), np.int64), 1
    edges = np.quantile(dataset.y[:, 0], np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, dataset.y[:, 0], side="right").astype(np.int64), BINS


def hold_out(kinds: Labels, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return the indices 0 .. n - 1 split into training and held-out examples, each ascending.

    About `fraction` of every kind is held out, by largest remainders of fraction x count, and at
    least 1 example in total. A kind keeps a training example if it can. DataError: there are less
    than 2 examples.
    """
    if len(kinds) < 2:
        raise DataError(
            f"cannot hold out {fraction:.0%}: expected at least 2 examples, found {len(kinds)}"
        )
    present, counts = np.unique(kinds, return_counts=True)
    shares = _count_held(counts, fraction, rng)
    held = np.sort(
        np.concatenate(
            [
                rng.choice(np.flatnonzero(kinds == c), n, replace=False)
                for c, n in zip(present, shares, strict=True)
            ]
        )
    )
    return np.setdiff1d(np.arange(len(kinds)), held, assume_unique=True), held


def _count_held(counts: Indices, fraction: float, rng: np.random.Generator) -> Indices:
    """Return the number of examples of each kind to hold out."""
    want = fraction * counts
    take: Indices = np.minimum(np.floor(want), counts - 1).astype(np.intp)
    short = max(1, round(fraction * int(counts.sum()))) - int(take.sum())
    ties = rng.permutation(len(counts))
    for c in ties[np.argsort(-(want - take)[ties], kind="stable")]:
        if short > 0 and take[c] < counts[c] - 1:
            take[c] += 1
            short -= 1
    if not take.any():  # every kind has one example, so hold out one of them
        take[ties[0]] = 1
    return take


def hold_out_last(sessions: Labels, users: Labels, fraction: float) -> tuple[Indices, Indices]:
    """Return the indices 0 .. n - 1, split so that the last recordings of each person are held out
    whole, about `fraction` of the examples, each part ascending.

    A cut inside a recording moves to its nearer end. If a person has only one recording, the window
    before the cut is dropped, since it overlaps the first one held out. A single example is a
    training example. DataError: no person has 2.
    """
    parts = [
        _split_last(np.flatnonzero(users == person), sessions, fraction)
        for person in np.unique(users)
    ]
    train, last = (
        (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
        if parts
        else (np.zeros(0, np.intp),) * 2
    )
    if not len(last):
        raise DataError(
            f"cannot hold out {fraction:.0%}: expected at least 2 examples of one person, "
            f"found {len(sessions)} in total"
        )
    return train, last


def _split_last(mine: Indices, sessions: Labels, fraction: float) -> tuple[Indices, Indices]:
    """Return one person's training examples and held-out examples."""
    order = mine[np.argsort(sessions[mine], kind="stable")]
    if len(order) < 2:
        return order, order[:0]
    cut = len(order) - max(1, round(fraction * len(order)))
    ends = np.flatnonzero(np.diff(sessions[order])) + 1
    if len(ends):
        cut = int(ends[np.argmin(np.abs(ends - cut))])
        return order[:cut], order[cut:]
    return order[: max(1, cut - 1)], order[cut:]


def hold_out_users(
    users: Labels, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return the indices 0 .. n - 1, split so that `fraction` of the people, at least 1, are held
    out with all their examples, each part ascending.

    DataError: there are less than 2 people.
    """
    people = np.unique(users)
    if len(people) < 2:
        raise DataError(
            f"cannot hold out {fraction:.0%} of people: expected at least 2, found {len(people)}"
        )
    theirs = np.isin(
        users, rng.choice(people, max(1, round(fraction * len(people))), replace=False)
    )
    return np.flatnonzero(~theirs), np.flatnonzero(theirs)
