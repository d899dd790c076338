"""Pass over examples without training, to measure batch norm statistics and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from federated.task import Recipe
from federated.training import objective
from federated.training.score_sums import Tallies, add
from federated.training.training_inputs import Array, Stopped, TrainingData, check_examples
from federated.training.training_loop import shuffle, to_device
from models.layers.batch_norm import calibrate as measure
from models.layers.early_exits import run_exits
from models.submodel import Submodel

__all__ = ["calibrate", "evaluate"]


def calibrate(
    net: nn.Module, x: Array, batch: int, seed: int, stop: Callable[[], bool] | None = None
) -> tuple[dict[str, Tensor], int]:
    """Return the batch norm statistics of one shuffled pass through x, and the number of batches.
    Also store them in `net`.

    Batches of one class each would have another spread than those of training, so the pass is
    shuffled.
    """
    check_examples(x, x)
    device = next(net.parameters()).device

    def batches() -> Iterator[Tensor]:
        for chosen in shuffle(len(x), batch, torch.Generator().manual_seed(seed)):
            if stop is not None and stop():
                raise Stopped
            yield to_device(x[chosen], device)

    return measure(net, batches())


def evaluate(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    data: TrainingData,
    stop: Callable[[], bool] | None = None,
) -> Tallies:
    """Return the tallies of raw examples in evaluation mode, by view; empty without examples.

    all: the last exit, with all classes
    exit0, exit1, ...: each exit, if there are several
    ensemble: the mean of the exits' logits, if there are several (DepthFL, Kim et al., ICLR 2023)
    labels: with the logits of classes that the data lack set to 0, if the data have labels
        (HeteroFL's local accuracy)
    """
    net.eval()
    device = next(net.parameters()).device
    network, found = submodel.network, dict[str, list[dict[str, list[float]]]]()
    held = objective.mark_labels(data.labels, network.outputs, device) if data.labels else None
    with torch.inference_mode():
        for start in range(0, len(data.y), recipe.batch):
            if stop is not None and stop():
                raise Stopped
            chosen = slice(start, start + recipe.batch)
            x, y = to_device(data.x[chosen], device), to_device(data.y[chosen], device)
            # every submodel and device hides the same tokens
            hiding = torch.Generator().manual_seed(start)
            shown, truth = objective.prepare_batch(network, recipe.hide, x, y, hiding)
            outs = run_exits(net, submodel, shown)
            views = {"all": outs[-1]}
            if len(outs) > 1:
                views |= {
                    "ensemble": torch.stack(outs).mean(0),
                    **{f"exit{i}": out for i, out in enumerate(outs)},
                }
            if held is not None:
                views["labels"] = objective.mask_logits(outs[-1], held)
            for view, out in views.items():
                found.setdefault(view, []).append(
                    objective.tally(network, out, truth, per_class=recipe.per_class)
                )
    return {view: add(tallies) for view, tallies in found.items()}
