"""Passes over examples without a training step: batch norm statistics, and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from federated.engine.tallies import Tallies, add
from federated.task import Recipe
from federated.training import objective
from federated.training.execution import Array, Stopped, TrainingData
from federated.training.loop import check, moved, shuffled
from models.layers.batch_norm import calibrate as measure
from models.submodel import Submodel

__all__ = ["calibrate", "evaluate"]


def calibrate(
    net: nn.Module, x: Array, batch: int, seed: int, stop: Callable[[], bool] | None = None
) -> tuple[dict[str, Tensor], int]:
    """Batch norm statistics over one shuffled pass through x, and the number of batches; they stay
    in `net` too.

    Shuffled, since batches of one class each would give the norms another spread than training saw.
    """
    check(x, x)
    device = next(net.parameters()).device

    def batches() -> Iterator[Tensor]:
        for chosen in shuffled(len(x), batch, torch.Generator().manual_seed(seed)):
            if stop is not None and stop():
                raise Stopped
            yield moved(x[chosen], device)

    return measure(net, batches())


def evaluate(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    data: TrainingData,
    stop: Callable[[], bool] | None = None,
) -> Tallies:
    """Tallies of raw examples, in evaluation mode, by view; empty without an example.

    "all": every class may be answered.
    "exit0" and on: of each exit, if there are several.
    "ensemble": the mean of the exits' logits (DepthFL, Kim et al., ICLR 2023).
    "labels": if the data name labels, with the logits of other classes set to 0 (HeteroFL's local
        accuracy).
    """
    net.eval()
    device = next(net.parameters()).device
    network, found = submodel.network, dict[str, list[dict[str, list[float]]]]()
    with torch.inference_mode():
        for start in range(0, len(data.y), recipe.batch):
            if stop is not None and stop():
                raise Stopped
            there = slice(start, start + recipe.batch)
            x, y = moved(data.x[there], device), moved(data.y[there], device)
            # the same tokens are hidden from everyone
            hiding = torch.Generator().manual_seed(start)
            shown, truth = objective.pose(network, recipe.hide, x, y, hiding)
            outs = objective.answers(net, submodel, shown)
            views = {"all": outs[-1]}
            if len(outs) > 1:
                views |= {
                    "ensemble": torch.stack(outs).mean(0),
                    **{f"exit{i}": out for i, out in enumerate(outs)},
                }
            if data.labels:
                views["labels"] = objective.masked(outs[-1], data.labels)
            for view, out in views.items():
                found.setdefault(view, []).append(
                    objective.tally(network, out, truth, per_class=recipe.per_class)
                )
    return {view: add(tallies) for view, tallies in found.items()}
