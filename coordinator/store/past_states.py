"""The states that late updates were made from, on disk and mapped, and what each round since then
folded into.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor

from coordinator.store.store import Store
from federated.engine.aggregate import Weight
from federated.engine.buffered import Base, Touched
from federated.errors import StoreError
from federated.method import State

__all__ = ["Past", "spelled", "spelt"]


class Past:
    """What is needed of earlier rounds. first: the state before the first round. staleness: rounds
    that an update may be late.
    """

    def __init__(self, store: Store, first: State, staleness: int) -> None:
        self.staleness, self._store, self._first = staleness, store, first
        self._states: dict[int, State] = {0: first}
        self._touched: dict[int, Touched] = {}  # by round
        store.kept = max(store.kept, staleness + 1)

    def within(self, started: int, now: int) -> bool:
        """Whether an update made from the state after round `started` would still be folded into
        the one after round `now`.
        """
        return now - started <= self.staleness

    def add(self, round: int, touched: Touched) -> None:
        """Takes note of what a finished round folded into, and forgets what nobody can be so late
        for.
        """
        self._touched[round] = touched
        self._states = {
            number: state
            for number, state in self._states.items()
            if not number or self.within(number, round)
        }
        self._touched = {
            number: one for number, one in self._touched.items() if self.within(number - 1, round)
        }

    def base(self, number: int, now: int) -> Base:
        """What an update was made from that started from the state after a round, as seen from that
        after round `now`. Raises StoreError.
        """
        return Base(
            self.state(number), tuple(self.touched(round) for round in range(number + 1, now + 1))
        )

    def state(self, number: int) -> State:
        if number not in self._states:
            self._read(number)
        return self._states[number]

    def touched(self, round: int) -> Touched:
        if round not in self._touched:
            self._read(round)
        return self._touched[round]

    def _read(self, round: int) -> None:
        tensors, text = self._store.checkpoint(round)
        if not text:
            raise StoreError(
                f"round {round} was stored without what it folded into, which late "
                "updates need: go on with late and mode as they were"
            )
        self._states[round] = replace(self._first, round=round, tensors=tensors)
        self._touched.setdefault(round, spelt(text))


def spelled(touched: Touched) -> str:
    """As text, to be stored with a round."""
    marks = {
        home: [[where, told(mark)] for where, mark in one.items()] for home, one in touched.items()
    }
    return json.dumps(marks)


def told(mark: Weight) -> float | str:
    return (
        "".join("1" if row else "0" for row in mark.tolist()) if isinstance(mark, Tensor) else mark
    )


def spelt(text: str) -> Touched:
    """The same back from text."""
    return {
        home: {tuple((a, b) for a, b in where): read(mark) for where, mark in one}
        for home, one in json.loads(text).items()
    }


def read(mark: float | str) -> Weight:
    return (
        torch.tensor([float(row) for row in mark], dtype=torch.float64)
        if isinstance(mark, str)
        else mark
    )
