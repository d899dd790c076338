"""A member of each extension point, as another package might add, in one file that no package of
the project imports. The trainer is in `toy_trainer`, which does not require PyTorch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded, RunEnded
from federated.engine.robust.arithmetic import Array, majority, per_coordinate
from federated.engine.robust.rule import Rule
from federated.method import Method, State
from federated.methods.fedavg import fedavg
from federated.task import Recipe
from federated.training.hooks import Hooks, Session, Survey
from federated.wire.codecs.codec import Codec, Tensors
from federated.wire.link import Link, Will
from federated.wire.links.memory import open_memory_link
from models.family import Family, TypicalData, check_mask, last_linear
from models.layers.basic import Standardise
from models.submodel import Submodel, scale_count

__all__ = [
    "MEMBERS",
    "TOY_CODEC",
    "TOY_FAMILY",
    "TOY_RULE",
    "count_events",
    "doubled_loss",
    "fail_at_rounds",
    "open_toy_link",
    "toy_data",
    "toy_method",
]

HERE = "tests.support.toy_extensions"
MEMBERS = {  # entry-point group -> module:attribute
    "espalier.codecs": f"{HERE}:TOY_CODEC",
    "espalier.data": f"{HERE}:toy_data",
    "espalier.families": f"{HERE}:TOY_FAMILY",
    "espalier.links": f"{HERE}:open_toy_link",
    "espalier.methods": f"{HERE}:toy_method",
    "espalier.readers": f"{HERE}:count_events",
    "espalier.rules": f"{HERE}:TOY_RULE",
    "espalier.trainers": "tests.support.toy_trainer:open_adding",
}


# ---- a method: devices minimise the cross-entropy of doubled logits, and survey their data -------


def doubled_loss(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.cross_entropy(2 * session.net(x), truth)


def survey(asked: Survey) -> dict[str, Any]:
    return {"examples": len(asked.x)}


def recipe(state: State, submodel: Submodel) -> Recipe:
    return replace(fedavg().recipe(state, submodel), hook="toy")


def toy_method() -> Method:
    return replace(
        fedavg(),
        name="toy",
        summary="FedAvg with doubled logits",
        recipe=recipe,
        hooks=Hooks("toy", survey=survey, loss=doubled_loss),
    )


# ---- a robust rule: the lowest value of each coordinate ------------------------------------------


def lowest(ordered: Array, counts: NDArray[np.int64], f: int) -> NDArray[np.float64]:
    return ordered[:, 0].astype(np.float64)


TOY_RULE = Rule(
    name="toy",
    help="of each coordinate, the lowest value",
    compares="coordinate",
    needed=majority,
    promises="between",
    combine=lambda kept, tensors, f: per_coordinate(kept, tensors, f, lowest),
)


# ---- a codec: every value with its sign changed --------------------------------------------------


def negate(tensors: Tensors) -> Tensors:
    return {name: -value for name, value in tensors.items()}


TOY_CODEC = Codec(
    name="toy",
    help="values with their sign changed",
    layout="each tensor as float32, negated",
    encode=negate,
    decode=negate,
    size=lambda count: 4 * count,
)


# ---- a link: memory by another scheme ------------------------------------------------------------


def open_toy_link(address: str, client_id: str, will: Will | None = None, /) -> Link:
    return open_memory_link(f"memory://{address.partition('://')[2]}", client_id, will)


# ---- readers of events ---------------------------------------------------------------------------


def count_events(context: ReaderContext) -> Publish:
    """Count events by type, and writes the counts at the end of the run."""
    counts = Counter[str]()

    def read(event: Event) -> None:
        counts[type(event).__name__] += 1
        if isinstance(event, RunEnded):
            (context.folder / "counts.json").write_text(json.dumps(counts))

    return read


def fail_at_rounds(context: ReaderContext) -> Publish:
    """Raise at the end of each round."""

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded):
            raise ValueError(f"cannot read {type(event).__name__}")

    return read


# ---- a family: one hidden layer ------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """hidden: channels of the hidden layer at width 1."""

    hidden: int
    depths: tuple[int, ...] = (1,)


PRESETS = MappingProxyType({"small": Size(16), "large": Size(32)})


class ToyNetwork(nn.Module):
    """Logits [N, outputs] of raw examples [N, ...]."""

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths)
        hidden = scale_count(submodel.width, size.hidden)
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        first = nn.Linear(prod(network.inputs), hidden)
        self.sections = nn.ModuleList([nn.ModuleDict({"0": first})])
        self.linear = nn.Linear(hidden, network.outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.sections[0]["0"](self.standardise(x).flatten(1))  # [N, hidden]
        out: Tensor = self.linear(torch.relu(hidden))
        return out


TOY_FAMILY = Family(
    build=ToyNetwork,
    presets=PRESETS,
    default="small",
    inputs=0,
    typical=TypicalData((4,), 2, "value"),
    labelled=last_linear,
    features=frozenset(),
    help="for points",
    draws=False,
)


# ---- data: two classes that a line divides -------------------------------------------------------


def toy_data(root: Path) -> Sequence[NDArray[Any]]:
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64)
