"""Make the network that a model's name means for given data, and check that it fits them.

Errors: see `models.families.catalogue`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from models.families.catalogue import family, parse
from models.family import Family, TypicalData
from models.meta_device_speedups import ShapeCache
from models.submodel import DataMoments, Moments, Network, Target
from models.submodel_building import full, rehearsal
from models.user_networks.library_networks import UnsupportedNetwork, digest_frozen_weights

__all__ = ["find_typical_data", "network"]

UNSCALED = Moments()  # data that need no normalisation


def network(
    model: str,
    inputs: Sequence[int],
    outputs: int,
    moments: DataMoments = UNSCALED,
    target: Target = "class",
) -> Network:
    """Return the network that `model` names, for raw examples of shape `inputs` and `outputs`
    classes, values or tokens.

    model: a family ("preresnet": its default preset), a family and a preset ("preresnet-18",
        "module:attribute-18"), or "module:function" (see `models.user_networks.user_network`).
    moments: of the data, which the network normalises, and their vocabulary if they are texts.
    target: kind of label in the data.
    LookupError(model, known names): unknown model. ValueError: it cannot be built.
    """
    name, preset = parse(model)
    mean, std, shift, scale = (
        tuple(map(float, values))
        for values in (moments.mean, moments.std, moments.shift, moments.scale)
    )
    made = Network(
        *(name, preset, tuple(inputs), outputs, mean, std),
        shift=shift,
        scale=scale,
        vocabulary=moments.vocabulary,
        tokenizer=moments.tokenizer,
    )
    known = family(made)
    check(made, known, target)
    try:
        made = replace(made, objective=known.objective(preset, target))
    except ValueError as error:
        raise ValueError(f"model '{model}': {error}") from error
    check_flow(made)
    return replace(made, frozen=digest_frozen_weights(made))


def find_typical_data(model: str) -> TypicalData:
    """Return the data that a model usually learns, such as images. LookupError, ValueError: as for
    `parse`.
    """
    name, preset = parse(model)
    return family(Network(name, preset, (), 0)).typical


def check(made: Network, known: Family, target: Target) -> None:
    shape = f"examples of shape {made.inputs}"
    if (
        not made.inputs
        or min(made.inputs) < 1
        or (known.inputs and len(made.inputs) != known.inputs)
    ):
        raise ValueError(
            f"{made.title}: cannot take {shape}; expected a shape of "
            f"{known.inputs or 'at least one'} axes, channels first, each of at least 1"
        )
    if made.vocabulary and not known.texts:
        raise ValueError(
            f"{made.title}: it reads numbers, but the data are texts; use a model for texts, such "
            "as hf:distilbert-base-uncased, or a network of your own"
        )
    if made.outputs < (1 if target == "value" else 2):
        raise ValueError(
            f"{made.title}: expected a number of outputs of at least "
            f"{1 if target == 'value' else 2}, found {made.outputs}"
        )
    for label, values in (("mean", made.mean), ("std", made.std)):
        if len(values) not in {1, made.inputs[0]} or not all(map(math.isfinite, values)):
            raise ValueError(
                f"{made.title}: {label} {values} for {shape}; expected 1 or "
                f"{made.inputs[0]} finite values"
            )
    if min(made.std) <= 0:
        raise ValueError(f"{made.title}: std {made.std}; expected values above 0")
    check_values(made, target)


def check_values(made: Network, target: Target) -> None:
    """Check the raw units of values: neither shift nor scale, or one finite number per value of
    both, scales above 0.
    """
    if len(made.shift) != len(made.scale):
        raise ValueError(
            f"{made.title}: shift {made.shift} and scale {made.scale}; expected both, or neither"
        )
    for label, values in (("shift", made.shift), ("scale", made.scale)):
        if values and (
            target != "value" or len(values) != made.outputs or not all(map(math.isfinite, values))
        ):
            wanted = (
                f"{made.outputs} finite numbers, or none"
                if target == "value"
                else f"none for target '{target}'"
            )
            raise ValueError(f"{made.title}: {label} {values}; expected {wanted}")
    if min(made.scale, default=1) <= 0:
        raise ValueError(f"{made.title}: scale {made.scale}; expected values above 0")


@lru_cache(maxsize=256)
def check_flow(made: Network) -> None:
    """Check that examples pass through the whole network."""
    try:
        net, x = rehearsal(full(made), 2)
        with ShapeCache(), torch.no_grad():
            out = net.eval()(x)
    except UnsupportedNetwork:
        raise
    except Exception as error:  # a user's network can raise anything
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{made.title}: {made.preset or 'the network'} cannot take examples of shape "
            f"{made.inputs}: {why}"
        ) from error
    wanted = (
        (2, made.outputs)
        if made.objective in {"class", "value"}
        else (2, made.outputs, *made.inputs)
    )
    if not isinstance(out, torch.Tensor):
        found = f"type {type(out).__name__}"
    elif tuple(out.shape) != wanted:
        found = f"shape {tuple(out.shape)}"
    else:
        return
    raise ValueError(
        f"{made.title}: for 2 examples of shape {made.inputs}, the network returned an output of "
        f"{found}; expected a tensor of shape {wanted}"
    )
