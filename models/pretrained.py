"""Initial tensors of a largest network from a file: a checkpoint of this project, or torchvision's
weights under torchvision's names.

torchvision's were trained on ImageNet's mean and deviation; a network here standardises by those of
its own data, which comes close.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.families.catalogue import FAMILIES, full, labelled, shapes
from models.submodel import Network
from models.vision import torchvision

__all__ = ["load"]

Tensors = Mapping[str, Tensor]

DOWNLOAD = "torchvision:"


def load(source: str, made: Network, base: Tensors) -> tuple[dict[str, Tensor], str]:
    """`base` with what a source holds of it, and one sentence that says what was taken.

    source: a .safetensors checkpoint of this project, a state dict of torchvision's (.pth, .pt or
    .safetensors), or "torchvision:NAME" with
        a name of its own weights ("DEFAULT", "IMAGENET1K_V1"), which are downloaded and checked
        against their hash, then kept by torch.hub.
    base: `initial(made, seed, features)`. Where the source has another number of classes, the head
    keeps it; so do tensors that only a
        feature adds ("steps", "exits") and running statistics, where the source lacks them.
    ValueError: the source cannot be read, or is of another network; names the first tensor that is
    missing, too many or of another shape.
    """
    if source.startswith(DOWNLOAD):
        found, origin = (
            converted(source, made, download(source, made), base),
            f"torchvision's {theirs(made)}",
        )
    else:
        found, origin = read(Path(source)), f"a checkpoint of {title(made)}"
        if theirs(made) and not is_own(found, base):
            found, origin = converted(source, made, found, base), f"torchvision's {theirs(made)}"
    return fit(source, origin, made, found, base)


def title(made: Network) -> str:
    return f"{made.family}-{made.preset}" if made.preset else made.family


def theirs(made: Network) -> str:
    """What torchvision calls this network; empty where it has none."""
    known = FAMILIES.get(made.family)
    return known.torchvision.names.get(made.preset, "") if known and known.torchvision else ""


def is_own(found: Tensors, base: Tensors) -> bool:
    """Whether a file speaks our names: torchvision's share a few of them at most, the
    classifier's.
    """
    return 2 * len(found.keys() & base.keys()) > len(base)


# ---- sources -------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Of a .pth or .pt nothing but tensors is taken; no code in it
    runs.
    """
    if path.suffix not in {".safetensors", ".pth", ".pt"}:
        raise ValueError(
            f"weights {path}: expected a .safetensors, .pth or .pt file, or {DOWNLOAD}DEFAULT"
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # a damaged file makes torch and safetensors raise whatever they stumble over
        raise ValueError(
            f"weights {path} cannot be read: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    return checked(str(path), loaded)


def download(source: str, made: Network) -> dict[str, Tensor]:
    """torchvision's own weights of this network, from its site or from where torch.hub keeps what
    it downloaded before.
    """
    name, entry = theirs(made), source.removeprefix(DOWNLOAD)
    if not name:
        able = sorted(
            f"{key}-{preset}"
            for key, known in FAMILIES.items()
            if known.torchvision
            for preset in known.torchvision.names
        )
        raise ValueError(
            f"{source}: torchvision has no network like {title(made)}; it has {', '.join(able)}"
        )
    known = torchvision("models").get_model_weights(name)
    if entry not in known.__members__:
        raise ValueError(
            f"{source}: expected one of {', '.join(known.__members__)} for {title(made)}"
        )
    try:
        loaded = known[entry].get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except Exception as error:  # no network, no such page, a wrong hash, a damaged file
        raise ValueError(
            f"{source}: the weights of {name} cannot be had from {known[entry].url}: {error}"
        ) from error
    return checked(source, loaded)


def checked(source: str, loaded: Any) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping) or not all(
        isinstance(value, Tensor) for value in loaded.values()
    ):
        found = (
            ", ".join(map(str, list(loaded)[:3]))
            if isinstance(loaded, Mapping)
            else type(loaded).__name__
        )
        raise ValueError(f"weights {source}: expected a dict of tensors by name, found {found}")
    return dict(loaded)


def converted(source: str, made: Network, found: Tensors, base: Tensors) -> dict[str, Tensor]:
    """torchvision's tensors as ours."""
    ours = FAMILIES[made.family].torchvision
    assert ours is not None
    try:
        tensors = ours.convert(made.preset, found)
        if (taken := numbers(tensors)) != numbers(found):
            raise ValueError(f"it takes {taken:,} of {numbers(found):,} numbers")
        return tensors
    except (KeyError, RuntimeError, ValueError) as error:
        first = next(name for name in base if name not in found)
        why = (
            f"tensor {error.args[0]} is missing or too many"
            if isinstance(error, KeyError)
            else str(error).splitlines()[0]
        )
        expected = f"no tensor {first} of shape {list(base[first].shape)}"
        raise ValueError(
            f"weights {source}: neither of {title(made)} ({expected}) nor torchvision's "
            f"{theirs(made)} ({why})"
        ) from error


def numbers(tensors: Tensors) -> int:
    """How many there are in all, counters of batches left out: a deeper network has the tensors of
    a shallower one, and more.
    """
    return sum(
        value.numel() for name, value in tensors.items() if not name.endswith("num_batches_tracked")
    )


# ---- fitting -------------------------------------------------------------------------------------


def fit(
    source: str, origin: str, made: Network, found: Tensors, base: Tensors
) -> tuple[dict[str, Tensor], str]:
    """`base` with the tensors found, once each is known to fit."""
    plain, head = shapes(full(made)), fresh_head(made, found, base)
    if missing := [name for name in plain if name not in found and name not in head]:
        raise ValueError(
            f"weights {source}: no tensor {missing[0]}; expected "
            f"{list(plain[missing[0]])} for {title(made)}"
        )
    if many := [
        name
        for name in found
        if name not in base and name not in optional(made) and not {"/", "@"} & set(name)
    ]:
        raise ValueError(
            f"weights {source}: tensor {many[0]} of shape {list(found[many[0]].shape)} "
            f"is no part of {title(made)}"
        )
    taken = {
        name: found[name].to(value.dtype)
        for name, value in base.items()
        if name in found
        and name not in head
        and (name in plain or found[name].shape == value.shape)
    }
    for name, value in taken.items():
        check(source, made, name, value, base[name])
    note = f"{len(taken)} of {len(base)} tensors from {origin} ({source})"
    if head:
        name = next(name for name in sorted(head) if name in found)
        note += (
            f"; the head starts anew, since it had {len(found[name])} outputs and "
            f"{len(base[name])} are needed: {', '.join(sorted(head))}"
        )
    return {**base, **taken}, note


def fresh_head(made: Network, found: Tensors, base: Tensors) -> frozenset[str]:
    """All labelled tensors where one has another number of classes and is otherwise alike, else
    none.
    """
    head = labelled(full(made))
    shaped = [(found[name].shape, base[name].shape) for name in head if name in found]
    return head if any(f[:1] != b[:1] and f[1:] == b[1:] for f, b in shaped) else frozenset()


def optional(made: Network) -> set[str]:
    """Tensors that features of the family add: those of a run that asked for more are left out."""
    known = FAMILIES.get(made.family)
    return (
        {name for feature in known.features for name in shapes(full(made, (feature,)))}
        if known
        else set()
    )


def check(source: str, made: Network, name: str, found: Tensor, expected: Tensor) -> None:
    if found.shape != expected.shape:
        message = (
            f"weights {source}: tensor {name}: expected shape {list(expected.shape)}, found "
            f"{list(found.shape)}"
        )
        axes, channels = (
            [
                a
                for a, (n, m) in enumerate(zip(found.shape, expected.shape, strict=False))
                if n != m
            ],
            made.inputs[0],
        )
        if found.ndim == expected.ndim and axes == [1] and expected.shape[1] == channels:
            message += f": it reads {found.shape[1]} input channels, and the data have {channels}"
        raise ValueError(message)
    if not bool(found.isfinite().all()):
        raise ValueError(f"weights {source}: tensor {name} is not finite")
