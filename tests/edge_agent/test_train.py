"""What a device builds: of networks that run code of its own, the one that its owner named and no other, wherever a message hides it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from edge_agent.limits import Limits
from edge_agent.train import check_allowed
from edge_agent.worker import Job
from federated.errors import Refused
from federated.task import Recipe, Task
from federated.wire.messages import Run
from models.families import full, network

NET = network("preresnet", (1, 4, 4), 3)
PLAIN, FOREIGN = full(NET), replace(full(NET), network=replace(NET, family="os:system"))


def job(model: str = "") -> Job:
    return Job("a", "digits", None, "", "iid", 0, "cpu", model, Limits())


def run(**given: object) -> dict[str, object]:
    return msgspec.to_builtins(replace(Run("r", "recipfl", "preresnet", NET, (PLAIN,), 8, "s"), **given))


def task(submodel, **options: object) -> dict[str, object]:
    return msgspec.to_builtins(Task("r", 1, 1, "a", "train", submodel, "r0", "0" * 64, 1, Recipe(hook="recipfl", options=options), 9.0))


@pytest.mark.parametrize(
    "message",
    [run(calibration=(FOREIGN,)), run(menu=(PLAIN, FOREIGN)), task(FOREIGN), task(PLAIN, small=msgspec.to_builtins(FOREIGN))],
    ids=["timed", "menu", "task", "options"],
)
def test_a_function_that_the_owner_did_not_name_is_refused(message) -> None:
    with pytest.raises(Refused, match="trains the network 'os:system': join with --model os:system"):
        check_allowed(job(), message)
    with pytest.raises(Refused):
        check_allowed(job("my:net"), message)
    check_allowed(job("os:system"), message)


def test_networks_of_this_package_need_no_permission() -> None:
    check_allowed(job(), run(menu=(PLAIN,), settings={"widths": (0.5, 1.0), "choice": "zico"}))
    check_allowed(job(), task(PLAIN, small=msgspec.to_builtins(PLAIN)))
