"""Find a family of networks by name, and build its networks and submodels, their shapes, initial
tensors and menus.

A family is a key of FAMILIES, an entry point of the group `espalier.families`, or
`module:attribute`: a `Family`, or a function that returns a network
(`models.user_networks.user_network`).

`models` does not use the project's errors: an unknown model raises `LookupError(name, known
names)`, and a model that cannot be built raises `ValueError`. Callers turn them into `Unknown`
and `ConfigError` (`federated.runtime.extension_errors.explain_lookup`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from models.extension_lookup import ExtensionPoint, import_member, known_names, load_all, lookup
from models.families.densenet import DENSENET
from models.families.efficientnet import EFFICIENTNET
from models.families.lenet import LENET
from models.families.mlp import MLP
from models.families.mobilenet import MOBILENET
from models.families.preresnet import PRERESNET
from models.families.resnet import RESNET
from models.families.resnet1d import RESNET1D
from models.families.transformer import TRANSFORMER
from models.families.vgg import VGG
from models.families.vit import VIT
from models.family import Address, Family, Pieces, TypicalData
from models.layers.basic import project, scale
from models.layers.batch_norm import NORMS
from models.random_state import isolate_random_state
from models.shape_cache import ShapeCache
from models.submodel import DataMoments, Moments, Network, Submodel, Target
from models.user_networks.user_network import own

__all__ = [
    "FAMILIES",
    "POINT",
    "address",
    "build",
    "example",
    "family",
    "find_labelled",
    "find_typical_data",
    "full",
    "has_family",
    "initial",
    "menu",
    "network",
    "normalising",
    "parameters",
    "pieces",
    "probes",
    "rehearsal",
    "shapes",
    "statistics",
]


FAMILIES: dict[str, Family] = {
    "densenet": DENSENET,
    "efficientnet": EFFICIENTNET,
    "lenet": LENET,
    "mlp": MLP,
    "mobilenet": MOBILENET,
    "preresnet": PRERESNET,
    "resnet": RESNET,
    "resnet1d": RESNET1D,
    "transformer": TRANSFORMER,
    "vgg": VGG,
    "vit": VIT,
}

POINT = ExtensionPoint("model", "espalier.families", Family)
STATISTICS = ("running_mean", "running_var")
UNSCALED = Moments()  # data that need no normalisation
# widths: mostly calls of operations; channels that fill no vector; arithmetic
PROBED = (0.125, 0.3, 0.5)


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
    moments: of the data, which the network normalises.
    target: kind of label in the data.
    LookupError(model, known names): unknown model. ValueError: it cannot be built.
    """
    name, preset = parse(model)
    mean, std, shift, scale = (
        tuple(map(float, values))
        for values in (moments.mean, moments.std, moments.shift, moments.scale)
    )
    made = Network(name, preset, tuple(inputs), outputs, mean, std, shift=shift, scale=scale)
    known = family(made)
    check(made, known, target)
    try:
        made = replace(made, objective=known.objective(preset, target))
    except ValueError as error:
        raise ValueError(f"model '{model}': {error}") from error
    check_flow(made)
    return made


def parse(model: str) -> tuple[str, str]:
    """Return the family and the preset of a name that the owner of this machine wrote.
    LookupError(model, known names): unknown model. ValueError: it cannot be imported.
    """
    module, colon, attribute = model.rpartition(":")
    name, _, preset = attribute.partition("-")
    if colon:
        name = f"{module}:{name}"
        known = import_family(name)
        if known is None:
            return model, ""
    elif name in FAMILIES or name in known_names(POINT, FAMILIES):
        known = lookup(POINT, name, FAMILIES)
    else:
        raise LookupError(model, model_names())
    if preset not in {"", *known.presets}:
        raise LookupError(model, tuple(list_spellings(name, known)) if colon else model_names())
    return name, preset or known.default


def find_typical_data(model: str) -> TypicalData:
    """Return the data that a model usually learns, such as images. LookupError, ValueError: as for
    `parse`.
    """
    name, preset = parse(model)
    return family(Network(name, preset, (), 0)).typical


def model_names() -> tuple[str, ...]:
    """Return every family, alone and with each of its presets."""
    return tuple(
        f for name, known in load_all(POINT, FAMILIES).items() for f in list_spellings(name, known)
    )


def list_spellings(name: str, known: Family) -> tuple[str, ...]:
    return (name, *(f"{name}-{preset}" for preset in known.presets))


@lru_cache(maxsize=64)
def import_family(name: str) -> Family | None:
    """Import the family "module:attribute"; None if it is something else or cannot be imported."""
    try:
        found = import_member(name, object)
    except ValueError:
        return None
    return found if isinstance(found, Family) else None


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
    if tuple(out.shape) != wanted:
        raise ValueError(
            f"{made.title}: from 2 examples of shape {made.inputs} it makes "
            f"{tuple(out.shape)}; expected {wanted}"
        )


@lru_cache(maxsize=64)
def rehearsal_device(made: Network) -> str:
    """Return the device on which to find out shapes: "meta", where nothing is computed, or "cpu"
    for a user's network whose forward pass depends on values.
    """
    if ":" not in made.family:
        return "meta"
    try:
        with torch.no_grad():
            build(full(made), "meta").eval()(example(made, 2, "meta"))
    except Exception:  # a user's network can raise anything; what fails on both is reported later
        return "cpu"
    return "meta"


def rehearsal(submodel: Submodel, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a module and a batch of zeros to find out the shapes of its tensors."""
    device = rehearsal_device(submodel.network)
    return build(submodel, device), example(submodel.network, batch, device)


def example(made: Network, batch: int, device: str = "cpu") -> Tensor:
    """Return a batch of empty raw examples: zeros, and token ids if the network reads texts."""
    dtype = torch.float32 if made.objective in {"class", "value"} else torch.int64
    return torch.zeros((batch, *made.inputs), dtype=dtype, device=device)


def has_family(name: str) -> bool:
    """Return True if a family that a message names can be built without importing anything."""
    return name in FAMILIES or name in load_all(POINT, FAMILIES)


def family(made: Network) -> Family:
    """Return the family of a network. ValueError: there is none of its name."""
    name = made.family
    if name in FAMILIES:
        return FAMILIES[name]
    if ":" in name:
        return import_family(name) or own(made)
    if not has_family(name):
        raise ValueError(
            f"model '{name}' is not on this machine: install the package that adds it "
            f"(entry points {POINT.group})"
        )
    return load_all(POINT, FAMILIES)[name]


def full(made: Network, features: Iterable[str] = ()) -> Submodel:
    """Return the whole network as a submodel: width 1, all blocks, with a method's features."""
    depths = family(made).presets[made.preset].depths
    return Submodel(made, 1.0, tuple((1,) * depth for depth in depths), tuple(sorted(features)))


def build(submodel: Submodel, device: str = "cpu", seed: int = 0) -> nn.Module:
    """Return the module of a submodel on a device ("meta" allocates nothing), initialised from a
    seed. torch's random state does not change.

    ValueError: a mask or a feature that the family does not know.
    """
    known = family(submodel.network)
    if odd := set(submodel.features) - known.features:
        able = ", ".join(name for name, other in FAMILIES.items() if odd <= other.features)
        raise ValueError(
            f"model '{submodel.network.title}' has no {', '.join(sorted(odd))}; models "
            f"that have: {able or 'none'}"
        )
    with isolate_random_state(seed), torch.device(device):
        net = known.build(submodel)
        if "projection" in submodel.features:
            project(net, submodel.width)
    if scalers := {"scaler", "scaler-always"} & set(submodel.features):
        scale(net, submodel.width, always="scaler-always" in scalers)
    return net


@lru_cache(maxsize=1024)
def measure_shapes(
    submodel: Submodel,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the parameters and of the running statistics; a weight used twice counts
    once, by its first name.
    """
    net = build(submodel, "meta")
    parameters = {name: tuple(value.shape) for name, value in net.named_parameters()}
    return parameters, {
        name: tuple(value.shape) for name, value in net.named_buffers() if name.endswith(STATISTICS)
    }


def shapes(submodel: Submodel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a submodel, which are sent, by name."""
    return dict(measure_shapes(submodel)[0])


def parameters(submodel: Submodel) -> int:
    """Return the number of parameters of a submodel."""
    return sum(map(math.prod, measure_shapes(submodel)[0].values()))


def statistics(submodel: Submodel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the running means and variances of a submodel, by name. They are sent
    only under `norm = "tracked"`.
    """
    return dict(measure_shapes(submodel)[1])


def initial(made: Network, seed: int, features: Iterable[str] = ()) -> dict[str, Tensor]:
    """Return the initial parameters and running statistics of the whole network."""
    whole = full(made, features)
    net = build(whole, seed=seed)
    wanted = shapes(whole) | statistics(whole)
    return {name: value.detach() for name, value in net.state_dict().items() if name in wanted}


@lru_cache(maxsize=1024)
def find_labelled(submodel: Submodel) -> frozenset[str]:
    """Return the names of the tensors whose axis 0 is the classes or values."""
    return family(submodel.network).labelled(submodel)


@lru_cache(maxsize=1024)
def normalising(submodel: Submodel) -> frozenset[str]:
    """Return the names of the parameters and running statistics of normalising layers: batch,
    instance, layer, group and RMS norm.
    """
    layers = {
        name: m for name, m in build(submodel, "meta").named_modules() if isinstance(m, NORMS)
    }
    known = shapes(submodel).keys() | statistics(submodel).keys()
    return frozenset(
        full_name
        for name, m in layers.items()
        for part in m.state_dict()
        if (full_name := f"{name}.{part}") in known
    )


def address(made: Network, name: str) -> Address | None:
    """Return section, block and rest of a tensor's name, or None outside the sections."""
    return family(made).address(name)


@lru_cache(maxsize=1024)
def pieces(submodel: Submodel) -> Pieces:
    """Return the kept entries of the tensors of a submodel that are no leading corners."""
    return family(submodel.network).pieces(submodel)


def menu(
    made: Network,
    widths: Iterable[float],
    depths: Iterable[int | Sequence[int]],
    features: Iterable[str] = (),
) -> tuple[Submodel, ...]:
    """Return the submodels of every width with every depth, each once, by number of parameters.

    widths: kept fractions in (0, 1]. depths: blocks kept per section, from the front, one number
    for all or one per section; a section with fewer blocks keeps all. ValueError: there are none,
    or they are out of range.
    """
    sizes = family(made).presets[made.preset].depths
    widths, features = tuple(widths), tuple(sorted(features))
    rows = [(d,) * len(sizes) if isinstance(d, int) else tuple(d) for d in depths]
    known = all(type(d) is int and d >= 1 for row in rows for d in row)
    if (
        not widths
        or not rows
        or not all(0 < w <= 1 for w in widths)
        or any(len(row) != len(sizes) for row in rows)
        or not known
    ):
        raise ValueError(
            "submodels: expected widths above 0 and at most 1, and depths of at least 1, each one "
            f"number or one for each of {len(sizes)} sections; found widths {list(widths)} and "
            f"depths {rows}"
        )
    unique = {
        Submodel(
            made,
            float(w),
            tuple((1,) * min(d, n) + (0,) * max(n - d, 0) for d, n in zip(row, sizes, strict=True)),
            features,
        )
        for w, row in itertools.product(widths, rows)
    }
    return tuple(sorted(unique, key=lambda s: (parameters(s), s.width, s.name)))


def probes(
    made: Network, depths: Iterable[int], features: Iterable[str] = ()
) -> tuple[Submodel, ...]:
    """Return submodels to time, smallest first: cheap ones that differ in their use of a machine,
    so that its costs can be fitted.

    depths: the least and the greatest of the submodels to be predicted. A user's network that
    cannot be narrowed is whole at both.
    """
    features, depths = tuple(features), tuple(depths)
    least, most = min(depths), max(depths)
    try:
        chosen = {
            menu(made, (width,), (depth,), features)
            for width, depth in zip(PROBED, (most, least, most), strict=True)
        }
    except ValueError:
        chosen = {menu(made, (1.0,), (depth,), features) for depth in (least, most)}
    return tuple(
        sorted((submodel for (submodel,) in chosen), key=lambda s: (parameters(s), s.name))
    )
