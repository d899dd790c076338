"""Keep what is needed to fold late updates: the states that their devices started from, as
memory-mapped checkpoints, and the parts of the network that each later round changed.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor

from coordinator.store.run_store import Store
from federated.engine.late_updates import Base, Touched
from federated.engine.update_contributions import Weight
from federated.errors import StoreError
from federated.method import State

__all__ = ["PastStates", "encode_touched"]


class PastStates:
    """Data of earlier rounds that late updates need.

    staleness: number of rounds that an update may be late.
    """

    def __init__(self, store: Store, first: State, staleness: int) -> None:
        """first: the state before the first round."""
        self.staleness, self._store, self._like = staleness, store, replace(first, tensors={})
        self._states: dict[int, State] = {0: first}
        self._touched: dict[int, Touched] = {}  # by round
        store.kept = max(store.kept, staleness + 1)

    def within(self, started: int, now: int) -> bool:
        """Return True if an update made from the state after round `started` may still be folded
        into the one after round `now`.
        """
        return now - started <= self.staleness

    def add(self, round: int, touched: Touched) -> None:
        """Add the rectangles that a finished round touched, and remove unneeded ones."""
        self._touched[round] = touched
        self._states = {
            number: state for number, state in self._states.items() if self.within(number, round)
        }
        self._touched = {
            number: one for number, one in self._touched.items() if self.within(number - 1, round)
        }

    def base(self, number: int, now: int) -> Base:
        """Return the base of an update that started from the state after round `number`, relative
        to the state after round `now`. Raises StoreError.
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
        tensors, text = self._store.read_checkpoint(round)
        if not text:
            raise StoreError(
                f"round {round} was stored without the list of weights that it changed, which "
                "late updates need: resume with fleet.late and fleet.mode unchanged"
            )
        self._states[round] = replace(self._like, round=round, tensors=tensors)
        self._touched.setdefault(round, decode_touched(text))


def encode_touched(touched: Touched) -> str:
    """Encode the rectangles that a round changed as text, to be stored with the round."""
    marks = {
        home: [[where, _encode_mark(mark)] for where, mark in one.items()]
        for home, one in touched.items()
    }
    return json.dumps(marks)


def decode_touched(text: str) -> Touched:
    """Decode the text of `encode_touched`."""
    return {
        home: {tuple((a, b) for a, b in where): _decode_mark(mark) for where, mark in one}
        for home, one in json.loads(text).items()
    }


def _encode_mark(mark: Weight) -> float | str:
    if not isinstance(mark, Tensor):
        return mark
    return "".join("1" if row else "0" for row in mark.tolist())


def _decode_mark(mark: float | str) -> Weight:
    if not isinstance(mark, str):
        return mark
    return torch.tensor([float(row) for row in mark], dtype=torch.float64)
