"""Load initial tensors of a largest network from a file: a checkpoint of this project, or the
weights of torchvision or timm under their names.

Those weights were trained on data standardised with ImageNet's mean and standard deviation;
a network here uses those of its own data, which is close enough to start from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.families.catalogue import FAMILIES, family
from models.family import Torchvision
from models.optional_torchvision import import_torchvision
from models.submodel import Network
from models.submodel_building import find_labelled, full, shapes
from models.user_networks.library_networks import LIBRARIES, load_trained

__all__ = ["load", "read"]

Tensors = Mapping[str, Tensor]

DOWNLOAD, DEFAULT = "torchvision:", "DEFAULT"


def load(source: str, network: Network, base: Tensors) -> tuple[dict[str, Tensor], str]:
    """Return `base` with the tensors of a source, and a sentence that says which tensors were
    loaded.

    source: a .safetensors checkpoint of this project, a state dict of torchvision's or timm's
        network (.pth, .pt or .safetensors), "torchvision:NAME" with the name of torchvision's
        weights ("DEFAULT", "IMAGENET1K_V1"), which torch.hub downloads, checks against their hash
        and caches, or "timm:DEFAULT". For a user's or a library's network: a state dict of that
        network, or "LIBRARY:DEFAULT"
    base: `initial(network, seed, features)`. The head keeps its values if the source has another
        number of classes; so do tensors that only a feature adds ("steps", "exits") and running
        statistics that the source lacks.
    ValueError: the source cannot be read, or belongs to another network; the message names the
        first tensor that is missing, unexpected or of another shape.
    """
    library = network.family.partition(":")[0]
    if library in LIBRARIES and source == f"{library}:{DEFAULT}":
        found = add_prefix(download_trained(source, network.family, network))
        origin = network.family
    elif source == f"timm:{DEFAULT}":
        origin = f"timm:{find_timm_name(source, network)}"
        found = convert(source, network, download_trained(source, origin, network), base)
    elif source.startswith(DOWNLOAD):
        found, origin = (
            convert(source, network, download(source, network), base),
            f"torchvision's {torchvision_name(network)}",
        )
    else:
        found, origin = read(Path(source)), f"a checkpoint of {format_name(network)}"
        if (original := name_original(network)) and not is_checkpoint(found, base):
            found, origin = convert(source, network, found, base), original
        elif ":" in network.family and not is_checkpoint(found, base):
            found, origin = add_prefix(found), f"a state dict of {network.title}"
    return fit(source, origin, network, found, base)


def format_name(network: Network) -> str:
    return f"{network.family}-{network.preset}" if network.preset else network.family


def torchvision_name(network: Network) -> str:
    """Return torchvision's name of this network, or "" if torchvision has none."""
    known = family(network).torchvision
    return known.names.get(network.preset, "") if known else ""


def name_original(network: Network) -> str:
    """Return the library and the name there of this network, or "" if no library has it."""
    known = family(network).torchvision
    if name := torchvision_name(network):
        return f"torchvision's {name}"
    name = known.timm.get(network.preset, "") if known else ""
    return f"timm's {name}" if name else ""


def find_timm_name(source: str, network: Network) -> str:
    """Return timm's name of this network. ValueError: timm has none."""
    known = family(network).torchvision
    if known and network.preset in known.timm:
        return known.timm[network.preset]
    raise make_missing_error(source, "timm", network, lambda known: known.timm)


def make_missing_error(
    source: str, library: str, network: Network, presets: Callable[[Torchvision], Iterable[str]]
) -> ValueError:
    """Return the error for a library without weights of this network. It names those that it has.

    presets: returns those of a family's presets that the library has.
    """
    able = sorted(
        f"{key}-{preset}"
        for key, known in FAMILIES.items()
        if known.torchvision
        for preset in presets(known.torchvision)
    )
    return ValueError(
        f"{source}: {library} has no weights for {format_name(network)}; it has weights for "
        f"{', '.join(able)}"
    )


def is_checkpoint(found: Tensors, base: Tensors) -> bool:
    """Return True if a file uses this project's tensor names; torchvision's share at most the
    classifier's.
    """
    return 2 * len(found.keys() & base.keys()) > len(base)


def add_prefix(found: Tensors) -> dict[str, Tensor]:
    """Name the tensors of a user's network as this project does, which puts it into another, and
    drop the counters of its norms.
    """
    return {
        f"net.{name}": value
        for name, value in found.items()
        if not name.endswith("num_batches_tracked")
    }


# ---- sources -------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name. Only tensors are loaded from a .pth or .pt file; code in
    it never runs.
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
        # torch and safetensors raise various errors for a damaged file
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, FileNotFoundError):  # that of safetensors repeats the path
            why = "no such file"
        elif isinstance(error, OSError) and error.strerror:
            why = error.strerror
        elif type(error).__name__ == "UnpicklingError":  # torch's advice is to load it unsafely
            why = "it is damaged, or contains more than tensors; save a state_dict with torch.save"
        raise ValueError(f"weights {path}: cannot be read: {why}") from error
    return check_tensors(str(path), loaded)


def download(source: str, network: Network) -> dict[str, Tensor]:
    """Return torchvision's weights of this network, from its site or from torch.hub's cache."""
    name, entry = torchvision_name(network), source.removeprefix(DOWNLOAD)
    if not name:
        raise make_missing_error(source, "torchvision", network, lambda known: known.names)
    known = import_torchvision("models").get_model_weights(name)
    if entry not in known.__members__:
        raise ValueError(
            f"{source}: expected one of {', '.join(known.__members__)} for {format_name(network)}"
        )
    try:
        loaded = known[entry].get_state_dict(
            progress=False, check_hash=True, map_location="cpu", weights_only=True
        )
    except Exception as error:  # offline, page not found, wrong hash, or damaged file
        raise ValueError(
            f"{source}: cannot download the weights of {name} from {known[entry].url}: {error}"
        ) from error
    return check_tensors(source, loaded)


def download_trained(source: str, model: str, network: Network) -> dict[str, Tensor]:
    """Return the trained weights of a library's network by name, from its site or the library's
    cache.
    """
    try:
        return dict(load_trained(model, network).state_dict())
    except Exception as error:  # offline, an unknown network, one without trained weights
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{source}: cannot load weights of {model}: {why}") from error


def check_tensors(source: str, loaded: Any) -> dict[str, Tensor]:
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


def convert(source: str, network: Network, found: Tensors, base: Tensors) -> dict[str, Tensor]:
    """Convert torchvision's or timm's tensors to this project's."""
    ours = family(network).torchvision
    assert ours is not None
    try:
        tensors = ours.convert(network.preset, found)
        if (taken := count_numbers(tensors)) != count_numbers(found):
            raise ValueError(f"only {taken:,} of {count_numbers(found):,} numbers are used")
        return tensors
    except (KeyError, RuntimeError, ValueError) as error:
        first = next(name for name in base if name not in found)
        why = (
            f"tensor {error.args[0]} is missing or unexpected"
            if isinstance(error, KeyError)
            else str(error).splitlines()[0]
        )
        expected = f"no tensor {first} of shape {list(base[first].shape)}"
        raise ValueError(
            f"weights {source}: match neither {format_name(network)} ({expected}) nor "
            f"{name_original(network)} ({why})"
        ) from error


def count_numbers(tensors: Tensors) -> int:
    """Count the numbers in all tensors except batch counters. A deeper network has all tensors of a
    shallower one, so equal names are not enough.
    """
    return sum(
        value.numel() for name, value in tensors.items() if not name.endswith("num_batches_tracked")
    )


# ---- fitting -------------------------------------------------------------------------------------


def fit(
    source: str, origin: str, network: Network, found: Tensors, base: Tensors
) -> tuple[dict[str, Tensor], str]:
    """Return `base` with the tensors found, after checking that each fits."""
    plain, head = shapes(full(network)), fresh_head(network, found, base)
    if missing := [name for name in plain if name not in found and name not in head]:
        raise ValueError(
            f"weights {source}: no tensor {missing[0]}; expected "
            f"{list(plain[missing[0]])} for {format_name(network)}"
        )
    if many := [
        name
        for name in found
        if name not in base and name not in list_optional(network) and not {"/", "@"} & set(name)
    ]:
        raise ValueError(
            f"weights {source}: tensor {many[0]} of shape {list(found[many[0]].shape)} "
            f"does not belong to {format_name(network)}"
        )
    taken = {
        name: found[name].to(value.dtype)
        for name, value in base.items()
        if name in found
        and name not in head
        and (name in plain or found[name].shape == value.shape)
    }
    for name, value in taken.items():
        check_fit(source, network, name, value, base[name])
    note = f"{len(taken)} of {len(base)} tensors from {origin} ({source})"
    if head:
        name = next(name for name in sorted(head) if name in found)
        note += (
            f"; the head is initialised at random, since the file has {len(found[name])} outputs "
            f"and {len(base[name])} are needed: {', '.join(sorted(head))}"
        )
    return {**base, **taken}, note


def fresh_head(network: Network, found: Tensors, base: Tensors) -> frozenset[str]:
    """Return all labelled tensors if one differs only in its number of classes, else none."""
    head = find_labelled(full(network))
    shaped = [(found[name].shape, base[name].shape) for name in head if name in found]
    return head if any(f[:1] != b[:1] and f[1:] == b[1:] for f, b in shaped) else frozenset()


def list_optional(network: Network) -> set[str]:
    """Return the tensors that features of the family add; a checkpoint may have them even if this
    run does not use them.
    """
    features = family(network).features
    return {name for feature in features for name in shapes(full(network, (feature,)))}


def check_fit(source: str, network: Network, name: str, found: Tensor, expected: Tensor) -> None:
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
            network.inputs[0],
        )
        if found.ndim == expected.ndim and axes == [1] and expected.shape[1] == channels:
            message += f": it reads {found.shape[1]} input channels, but the data have {channels}"
        raise ValueError(message)
    if not bool(found.isfinite().all()):
        raise ValueError(f"weights {source}: tensor {name} is not finite")
