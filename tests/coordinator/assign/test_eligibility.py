"""Which devices a run refuses, and what it tells them."""

from __future__ import annotations

from coordinator.assign.eligibility import lacking, unable
from federated.capabilities import CAPABILITIES
from federated.data import catalogue
from federated.task import Profile

CARD = catalogue.central("digits").card()


def profile(*capabilities: str) -> Profile:
    return Profile(
        "a", "h", "s", 1.0, 1, 1.0, 1, "onnxruntime 1.31", CARD, (), capabilities=capabilities
    )


def test_a_device_learns_what_its_trainer_lacks_and_how_to_join() -> None:
    why = unable(profile(*CAPABILITIES), {"hook:moon", "clip"}, "moon")
    assert "hook:moon" in why
    assert "onnxruntime 1.31" in why
    assert "--trainer pytorch" in why
    assert "clip" not in why
    assert "method" not in why


def test_a_device_learns_how_to_get_a_method_of_somebody_else() -> None:
    own, packaged = (unable(profile(), {"hook:toy"}, name) for name in ("my:toy", "toy"))
    assert "hook:toy" in own
    assert "--method my:toy if you trust" in own
    assert "install the package that adds the method 'toy'" in packaged


def test_a_trainer_with_every_needed_capability_is_not_refused() -> None:
    assert unable(profile("clip", "masked"), {"clip"}, "moon") == ""
    assert unable(profile(), frozenset(), "moon") == ""


def test_a_device_learns_how_to_get_a_codec() -> None:
    assert lacking(profile(), "raw") == ""
    assert "join with --codec my:CODEC if you trust" in lacking(profile(), "my:CODEC")
    assert "package" in lacking(profile(), "toy")
