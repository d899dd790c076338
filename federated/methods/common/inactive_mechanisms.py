"""Explain why a method's own mechanism has no effect in a run: settings switch it off, the run is
too short, or its menu of submodels has one size only.

Each reason is a clause that states the problem and, after a colon, the remedy. The coordinator logs
each as a warning when a run starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from federated.method import Method, Settings
from models.layers.early_exits import exit_places
from models.submodel import Submodel

__all__ = ["inactive", "one_exit", "one_round", "one_size", "one_step", "same_blocks"]


def inactive(method: Method, menu: Sequence[Submodel], settings: Settings) -> tuple[str, ...]:
    """Return every reason for a run of this menu: those of the method, milestones of the learning
    rate after the run's last round, and augmentation of examples that are not images.

    settings: from `configure`, with the run's number of rounds; 0 (unknown) gives no reason that
        depends on it
    """
    return (
        *method.inactive(menu, settings),
        *late_milestones(settings),
        *augmented_others(menu, settings),
    )


def late_milestones(settings: Settings) -> Iterator[str]:
    rounds = settings["rounds"]
    if late := [at for at in settings["milestones"] if at > rounds > 0]:
        yield (
            f"milestones {late} come after the last of {rounds} rounds: set train.milestones to "
            "fractions of the run, such as [0.5, 0.75]"
        )


def augmented_others(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    network = menu[0].network
    if settings["augment"] and not network.reads_images:
        yield (
            "train.augment changes images only, but examples have the shape "
            f"{network.inputs}: remove it"
        )


def one_size(
    menu: Sequence[Submodel],
    settings: Settings,
    *,
    remedy: str = "method.widths or method.depths to several sizes",
) -> Iterator[str]:
    """Yield a reason if the menu has one submodel, for methods that combine several sizes.

    remedy: settings to change, and their new values
    """
    if len(menu) == 1:
        yield f"every device trains the same submodel, {menu[0].unowned.name}: set {remedy}"


def same_blocks(menu: Sequence[Submodel], settings: Settings, *, effect: str) -> Iterator[str]:
    """Yield a reason if no submodels differ in depth, for methods that need it.

    effect: what does not happen without a difference
    """
    if len({submodel.mask for submodel in menu}) == 1:
        yield (
            f"all submodels keep the same blocks, so {effect}: set method.depths to several "
            "depths, or use a model with more blocks"
        )


def one_exit(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield a reason if every submodel has one exit, for methods whose exits teach each other."""
    if max(len(exit_places(submodel)) for submodel in menu) == 1:
        yield (
            "no submodel has a second exit, so no exit learns from another: set method.depths to "
            "deeper ones"
        )


def one_round(menu: Sequence[Submodel], settings: Settings, *, effect: str) -> Iterator[str]:
    """Yield a reason if the run has one round, for methods that use results of earlier rounds.

    effect: what does not happen in the first round
    """
    if settings["rounds"] == 1:
        yield f"{effect} in the first round, and the run has rounds = 1: set rounds to at least 2"


def one_step(menu: Sequence[Submodel], settings: Settings, *, effect: str) -> Iterator[str]:
    """Yield a reason if a round has one local step.

    effect: what has no effect with one step
    """
    if settings["steps"] == 1:
        yield f"steps = 1 {effect}: set train.steps to 0 (all of the local data) or to at least 2"
