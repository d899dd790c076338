"""What a benchmark expects of a submodel, from probes that were timed before."""

from __future__ import annotations

from dataclasses import dataclass

from federated.task import Timing
from models.submodel import Submodel

__all__ = ["Prediction"]


@dataclass(frozen=True)
class Prediction:
    """What a device's timings of probes, of one inference and of training steps, say of other
    submodels; None of the probes themselves.
    """

    inference: tuple[Timing, ...] = ()
    training: tuple[Timing, ...] = ()

    def latency(self, submodel: Submodel | None) -> float | None:
        """Seconds of one inference (p50)."""
        if (
            submodel is None
            or not self.inference
            or submodel in [timing.submodel for timing in self.inference]
        ):
            return None
        from federated.device.prediction import latency_seconds

        return latency_seconds(self.inference, submodel)

    def step(self, submodel: Submodel | None, batch: int) -> float | None:
        """Seconds of a training step (the quickest)."""
        if (
            submodel is None
            or not self.training
            or submodel in [timing.submodel for timing in self.training]
        ):
            return None
        from federated.device.prediction import step_seconds

        return step_seconds(self.training, submodel, batch)
