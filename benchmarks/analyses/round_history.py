"""Record numbers of every round that checkpoints do not keep: an event reader, which a run uses
with `observe.readers = ["benchmarks.analyses.round_history:record"]`.

It appends a line per round to analyses.jsonl in the run's folder: each tensor of the state that is
a single number (NeFL's step sizes, InCo's beta and theta), and the scores of DynamicFL's layers,
which simulated devices keep in the run's folder.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded
from coordinator.observe.round_records import RoundRecord
from federated.errors import ConfigError
from federated.methods.dynamicfl import SCORES
from federated.training import state_between_rounds

__all__ = ["READER", "read_history", "record"]

FILE = "analyses.jsonl"
READER = "benchmarks.analyses.round_history:record"


class RoundNumbers(msgspec.Struct, frozen=True):
    """The numbers of a round.

    round: its number.
    numbers: of the state after it, by home.
    scores: device -> layer -> the score of its best branch, of devices that trained in the round.
    """

    round: int
    numbers: dict[str, float]
    scores: dict[str, dict[str, float]]


def record(context: ReaderContext) -> Publish:
    """Make a reader that appends the numbers of each finished round."""

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded):
            line = msgspec.json.encode(collect(event.done, context.folder))
            with (context.folder / FILE).open("ab") as file:
                file.write(line + b"\n")

    return read


def collect(done: RoundRecord, folder: Path) -> RoundNumbers:
    numbers = {
        home: float(value)
        for home, value in done.tensors.items()
        if value.numel() == 1 and value.is_floating_point()
    }
    scores = {}
    for entry in done.entries:
        place = folder / "spool" / "devices" / entry.agent / state_between_rounds.FOLDER
        kept = state_between_rounds.read(place, done.round) if entry.outcome == "folded" else {}
        found = {
            name.removeprefix(SCORES): float(value.max())
            for name, value in kept.items()
            if name.startswith(SCORES)
        }
        if found:
            scores[entry.agent] = found
    return RoundNumbers(done.round, numbers, scores)


def read_history(folder: Path) -> list[RoundNumbers]:
    """Return the numbers of each round; of a repeated round the last ones. Raises ConfigError if
    the run was not recorded.
    """
    path = folder / FILE
    if not path.exists():
        raise ConfigError(
            f"run '{folder.name}' has no {FILE}, which records every round: start it with the "
            f"setting observe.readers = ['{READER}']"
        )
    lines = [
        msgspec.json.decode(line, type=RoundNumbers) for line in path.read_bytes().splitlines()
    ]
    return [one for _, one in sorted({line.round: line for line in lines}.items())]
