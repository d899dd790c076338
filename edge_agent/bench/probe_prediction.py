"""Predict the times of submodels from timed probes."""

from __future__ import annotations

from dataclasses import dataclass

from federated.task import Timing
from models.submodel import Submodel

__all__ = ["Prediction"]


@dataclass(frozen=True)
class Prediction:
    """Timings of probes, from which times of other submodels are predicted; None for the probes
    themselves.

    inference: timings of one inference
    training: timings of training steps
    """

    inference: tuple[Timing, ...] = ()
    training: tuple[Timing, ...] = ()

    def latency(self, submodel: Submodel | None) -> float | None:
        """Predict the seconds of one inference (p50)."""
        if submodel is None or not _can_predict(self.inference, submodel):
            return None
        from federated.training.prediction import latency_seconds

        return latency_seconds(self.inference, submodel)

    def step(self, submodel: Submodel | None, batch: int) -> float | None:
        """Predict the seconds of a training step (the fastest)."""
        if submodel is None or not _can_predict(self.training, submodel):
            return None
        from federated.training.prediction import step_seconds

        return step_seconds(self.training, submodel, batch)


def _can_predict(timings: tuple[Timing, ...], submodel: Submodel) -> bool:
    return bool(timings) and all(timing.submodel != submodel for timing in timings)
