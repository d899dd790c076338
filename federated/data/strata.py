"""Kinds of examples, and the splits that hold some out: of every kind a share, the last recordings,
or whole people.
"""

from __future__ import annotations

import numpy as np

from federated.data.dataset import Dataset, Indices, Labels
from federated.errors import DataError

__all__ = ["hold_out", "hold_out_last", "hold_out_users", "strata"]

BINS = 10  # of equally many examples, in which values are shown and held out


def strata(dataset: Dataset) -> tuple[Labels, int]:
    """Which kind each training example is of, int64 [n], and how many kinds there are.

    Kinds are the classes; ten bins of equally many examples by the first value; and one for all
    texts.
    """
    if dataset.target == "class":
        return dataset.y.astype(np.int64, copy=False), dataset.outputs
    if dataset.target == "token":
        return np.zeros(len(dataset.y), np.int64), 1
    edges = np.quantile(dataset.y[:, 0], np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, dataset.y[:, 0], side="right").astype(np.int64), BINS


def hold_out(kinds: Labels, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Splits 0 .. n - 1 into examples to train on and examples to hold out, each ascending.

    About `fraction` of every kind is held out, by largest remainders of fraction x count; at least
    1 example in all.
    A kind keeps an example to train on where it can. Raises DataError when there is less than one
    example for each part.
    """
    if len(kinds) < 2:
        raise DataError(
            f"holding out {fraction:.0%}: expected at least 2 examples, found {len(kinds)}"
        )
    present, counts = np.unique(kinds, return_counts=True)
    shares = _shares(counts, fraction, rng)
    held = np.sort(
        np.concatenate(
            [
                rng.choice(np.flatnonzero(kinds == c), n, replace=False)
                for c, n in zip(present, shares, strict=True)
            ]
        )
    )
    return np.setdiff1d(np.arange(len(kinds)), held, assume_unique=True), held


def _shares(counts: Indices, fraction: float, rng: np.random.Generator) -> Indices:
    """How many of each kind to hold out."""
    want = fraction * counts
    take: Indices = np.minimum(np.floor(want), counts - 1).astype(np.intp)
    short = max(1, round(fraction * int(counts.sum()))) - int(take.sum())
    ties = rng.permutation(len(counts))
    for c in ties[np.argsort(-(want - take)[ties], kind="stable")]:
        if short > 0 and take[c] < counts[c] - 1:
            take[c] += 1
            short -= 1
    if not take.any():  # every kind has one example: one of them has to go
        take[ties[0]] = 1
    return take


def hold_out_last(sessions: Labels, users: Labels, fraction: float) -> tuple[Indices, Indices]:
    """Splits 0 .. n - 1 so that each person's last recordings are held out whole, about `fraction`
    of the examples, each part ascending.

    A cut inside a recording goes to its nearer end; of a person's only recording the window before
    the cut is in neither part, since it overlaps the first that is held out. Who has one example
    keeps it to train on.
    Raises DataError when nobody has 2.
    """
    parts = [
        _last(np.flatnonzero(users == person), sessions, fraction) for person in np.unique(users)
    ]
    train, last = (
        (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
        if parts
        else (np.zeros(0, np.intp),) * 2
    )
    if not len(last):
        raise DataError(
            f"holding out {fraction:.0%}: expected at least 2 examples of one person, "
            f"found {len(sessions)} in all"
        )
    return train, last


def _last(mine: Indices, sessions: Labels, fraction: float) -> tuple[Indices, Indices]:
    """One person's examples to train on, and those to hold out."""
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
    """Splits 0 .. n - 1 so that `fraction` of the people, at least 1, are held out with all that is
    theirs, each part ascending.

    Raises DataError when there are less than 2 people.
    """
    people = np.unique(users)
    if len(people) < 2:
        raise DataError(
            f"holding out {fraction:.0%} of the people: expected at least 2, found {len(people)}"
        )
    theirs = np.isin(
        users, rng.choice(people, max(1, round(fraction * len(people))), replace=False)
    )
    return np.flatnonzero(~theirs), np.flatnonzero(theirs)
