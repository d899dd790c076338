"""Check that a run uses only code that this device allows: this package's, that of installed
packages, and what the device's owner named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edge_agent.join.training_process_control import Job
from federated.device.trainers.catalogue import AUTO, DEFAULT
from federated.errors import Refused, Unknown
from federated.runtime.extension_errors import explain_lookup
from federated.wire.codecs.catalogue import find_codec

if TYPE_CHECKING:
    from federated.method import Method

__all__ = [
    "check_allowed",
    "check_run",
    "find_allowed_method",
    "import_network",
    "load_own",
]


def load_own(job: Job) -> None:
    """Import the method and the codec that the owner named, so that messages may refer to them.
    Raises ConfigError if one cannot be imported.
    """
    if job.method:
        from federated.methods.catalogue import find_method

        find_method(job.method)
    if job.codec:
        find_codec(job.codec)


def import_network(model: str) -> None:
    """Import the network that the owner named; needs PyTorch. Raises Unknown, ConfigError."""
    from models.families.catalogue import POINT
    from models.named_network import find_typical_data

    with explain_lookup(POINT):
        find_typical_data(model)


def check_run(job: Job, card: Mapping[str, Any]) -> None:
    """Check that this device has the code that a run's card names. Raises Refused, with what is
    missing and the remedy.

    The coordinator checks hooks and codecs by the device's profile. A trainer of the owner's own
    decides itself which networks it supports.

    card: a `federated.wire.messages.Run` as plain values.
    """
    check_allowed(job, card)
    # a setting may name networks, as recipfl's `models` does
    for value in walk(card.get("settings", {})):
        if isinstance(value, str):
            check_family(job, value)
    if job.trainer not in (AUTO, DEFAULT):
        return
    network, menu = card.get("network"), card.get("menu")
    if network is not None:
        check_installed(network["family"])
    if menu:  # the method surveys this device
        find_allowed_method(card["method"])


def find_allowed_method(name: str) -> Method:
    """Return the method that a run's card names. Raises Refused, with the remedy."""
    from federated.methods.catalogue import find_loaded_method

    try:
        return find_loaded_method(name)
    except Unknown as error:
        raise Refused(f"{error}: {suggest_remedy('method', name)}") from error


def check_allowed(job: Job, message: Any) -> None:
    """Check that the owner allows the networks that a message names. A network of
    `module:attribute` runs code on this device, so only the one that its owner named is built.

    message: a run or a task as plain values; a menu and a recipe's options name networks too.
    Raises Refused.
    """
    for value in walk(message):
        if isinstance(value, Mapping) and isinstance(family := value.get("family"), str):
            check_family(job, family)


def walk(value: Any) -> Iterator[Any]:
    """Yield a plain value and all values inside it."""
    yield value
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for one in inner:
            yield from walk(one)


def check_installed(family: str) -> None:
    """Raise Refused for a network from a package that this device lacks."""
    from models.families.catalogue import has_family

    if ":" not in family and not has_family(family):
        raise Refused(
            f"this run trains the network '{family}', which this device lacks: "
            f"{suggest_remedy('model', family)}"
        )


def check_family(job: Job, family: str) -> None:
    """Raise Refused for a network of `module:attribute` that the owner did not name."""
    if ":" in family and family not in (job.model, job.model.partition("-")[0]):
        raise Refused(f"this run trains the network '{family}': {suggest_remedy('model', family)}")


def suggest_remedy(flag: str, name: str) -> str:
    """Describe how the owner of the device can provide missing code."""
    if ":" in name:
        return f"join with --{flag} {name} if you trust that code"
    return "install the package that adds it"
