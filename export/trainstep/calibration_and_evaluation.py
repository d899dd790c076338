"""A calibration and an evaluation as functions of tensors.

A calibration is one batch of `models.layers.batch_norm.calibrate`: the mean and the unbiased
variance of what each batch norm meets, while all other layers behave as in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from export.trainstep.named_tensor_function import Answers, GraphFunction, make_examples
from export.trainstep.weighted_norm import WeightedNorm
from federated.device.trainers.graph_names import OUT, STATISTIC
from models.layers.batch_norm import norms
from models.submodel import Submodel
from models.submodel_building import statistics

__all__ = ["make_calibration", "make_evaluation"]


def make_calibration(submodel: Submodel, batch: int) -> GraphFunction:
    """Return the calibration of a submodel that has batch norm."""
    answers = Answers.of(submodel)
    inputs = make_examples(answers.net, submodel.network, batch)
    return GraphFunction("calibration", submodel, Calibration(answers), inputs)


def make_evaluation(submodel: Submodel, batch: int) -> GraphFunction:
    """Return the evaluation of a submodel."""
    answers = Answers.of(submodel)
    inputs = make_examples(answers.net, submodel.network, batch)
    del inputs["weights"]
    known = statistics(submodel)
    inputs |= {STATISTIC + name: torch.ones(shape) for name, shape in known.items()}
    return GraphFunction("evaluation", submodel, Evaluation(answers), inputs)


@dataclass(frozen=True)
class Calibration:
    """The statistics of one batch."""

    answers: Answers

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.answers.net.eval()
        for layer in norms(self.answers.net).values():
            layer.training, layer.momentum = True, 1.0  # this batch replaces the statistics
        buffers = self.answers.copy_buffers()
        with torch.no_grad(), WeightedNorm(given["weights"]):
            self.answers.answer({**self.answers.parameters_from(given), **buffers}, given["x"])
        return {STATISTIC + name: buffers[name] for name in self.answers.statistics}


@dataclass(frozen=True)
class Evaluation:
    """The outputs of every exit."""

    answers: Answers

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.answers.net.eval()
        buffers = {name: given[STATISTIC + name] for name in self.answers.statistics}
        tensors = {**self.answers.parameters_from(given), **self.answers.copy_buffers(), **buffers}
        with torch.no_grad():
            outs = self.answers.answer(tensors, given["x"])
        return {f"{OUT}{i}": out for i, out in enumerate(outs)}
