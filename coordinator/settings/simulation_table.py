"""Define the settings of a simulation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from coordinator.settings.config_tables import NotNegative, Positive
from federated.defaults import HELD, PARTITION
from federated.device.trainers.catalogue import DEFAULT
from federated.settings_validation import Natural, Record, Seed
from federated.task import Watts

__all__ = ["Simulate"]

Speed = Annotated[float, Meta(gt=0)]
RayAddress = Annotated[str, Meta(pattern=r"^ray://[^/:\s]+:\d+$")]


class Simulate(Record, frozen=True):
    """Devices and data of `coordinator simulate`; a real fleet has its own."""

    agents: Annotated[Positive, Meta(description="Number of devices, named d0, d1, ...")] = 10
    partition: Annotated[
        str,
        Meta(
            description="How training examples are distributed over the devices, in the form of "
            "`edge-agent join --partition`."
        ),
    ] = PARTITION
    held: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Fraction of its examples that a device holds out for validation.",
        ),
    ] = HELD
    local_test: Annotated[
        Literal["own", "global"],
        Meta(
            description="Held-out examples of a device. own: the fraction `held` of its examples. "
            "global: the coordinator's held-out examples of the device's classes; the device "
            "then trains on all of its examples."
        ),
    ] = "own"
    speeds: Annotated[
        tuple[Speed, ...],
        Meta(
            description="Relative speeds of equal groups of devices, in order. They decide which "
            "submodel a device gets, unless assign.submodels does."
        ),
    ] = (1.0,)
    delays: Annotated[
        tuple[NotNegative, ...],
        Meta(
            description="Minimum duration of a training in seconds, for equal groups of devices in "
            "order; empty: no minimum."
        ),
    ] = ()
    watts: Annotated[
        tuple[Watts, ...],
        Meta(
            description="Power of a device while it trains, in watts, for equal groups of devices "
            "in order; 0 or empty: unknown."
        ),
    ] = ()
    seeds: Annotated[
        tuple[Seed, ...],
        Meta(description="Seeds of the runs, one run each; empty: one run, with the setting seed."),
    ] = ()
    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="Hardware on which simulated devices train.")
    ] = "cpu"
    trainer: Annotated[
        str,
        Meta(
            description="Trainer of the simulated devices: a built-in one, one of an installed "
            "package, or module:function for your own. onnx trains as devices without PyTorch do."
        ),
    ] = DEFAULT
    attackers: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="For research: fraction of the devices that are malicious, rounded up and "
            "drawn from the seed. They claim the highest of the speeds, to get the largest "
            "submodel.",
        ),
    ] = 0.0
    attack: Annotated[
        str,
        Meta(
            description="For research: what malicious devices send, as KIND or KIND:STRENGTH such "
            "as sign-flip:5, in the form of `edge-agent join --attack`."
        ),
    ] = "backdoor"
    workers: Annotated[
        Natural | RayAddress,
        Meta(
            description="Training processes, or threads with cuda; 0: one per CPU, at most 4 with "
            "cuda. ray://HOST:PORT: one process per free CPU of a Ray cluster."
        ),
    ] = 0
    target: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Count multiply-adds until the largest submodel reaches this accuracy; "
            "the run continues. 0: target_accuracy.",
        ),
    ] = 0.0
