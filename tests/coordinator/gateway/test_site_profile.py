"""The profile of a gateway promises what every device of its site can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.gateway.site_profile import GatewayFacts, combine_profiles, select_alike
from coordinator.trust.message_checks import check_card
from federated.task import Card, Profile, Timing
from federated.wire import envelope
from tests.support.scripted_agent import PROFILE
from tests.support.scripted_coordinator import SMALL

GATEWAY = GatewayFacts("site", ("eu",), (262_144, 1e6))


def device(name: str, examples: int, seconds: float, mean: float, **fields: object) -> Profile:
    card = Card("d", (1, 2, 2), "float32", 3, examples, 2, (mean,), (1.0,))
    made = replace(PROFILE, agent=name, data=card, timings=(Timing(SMALL, 32, seconds),))
    return replace(made, **fields)  # type: ignore[arg-type]


def combine(devices: list[Profile]) -> Profile:
    return combine_profiles(GATEWAY, devices, 10.0)


def test_it_counts_all_examples_and_pools_their_moments() -> None:
    """Means 0 and 4 with weights 3 and 1: mean 1, variance 1 + (3 * 1 + 1 * 9) / 4 = 4."""
    found = combine([device("a", 30, 0.1, 0.0), device("b", 10, 0.1, 4.0)])
    assert (found.data.examples, found.data.held_out, found.devices) == (40, 4, 2)
    assert (*found.data.mean, *found.data.std) == pytest.approx((1.0, 2.0))


def test_a_step_takes_the_longest_devices_share_of_all_examples() -> None:
    """Device a trains on 30 of 40 examples, 0.1 s a step: 0.075 s. Device b: 10 / 40 * 0.2 s."""
    found = combine([device("a", 30, 0.1, 0.0), device("b", 10, 0.2, 0.0)])
    assert [timing.seconds for timing in found.timings] == pytest.approx([0.075])


def test_it_has_the_least_memory_and_the_common_capabilities() -> None:
    able = device("a", 1, 0.1, 0.0, memory=8, capabilities=("adam", "clip"), watts=3.0)
    less = device("b", 1, 0.1, 0.0, memory=4, capabilities=("clip",), watts=2.0)
    found = combine([able, less])
    assert (found.agent, found.memory, found.capabilities, found.watts) == (
        "site",
        4,
        ("clip",),
        5.0,
    )
    assert (found.labels, found.chunk, found.uplink) == (("eu",), 262_144, 1e6)


def test_it_leaves_out_what_a_device_could_not_time() -> None:
    small = replace(device("b", 1, 0.1, 0.0), timings=())
    assert combine([device("a", 1, 0.1, 0.0), small]).timings == ()


def test_a_device_counts_with_at_most_ten_times_the_median_of_the_examples() -> None:
    devices = [device("a", 30, 0.1, 0.0), device("b", 30, 0.1, 0.0)]
    found = combine([*devices, device("liar", 2**40 - 1, 0.1, 6.0)])
    assert found.data.examples == 360
    assert found.data.mean == pytest.approx((5.0,))
    assert [timing.seconds for timing in found.timings] == pytest.approx([0.1 * 300 / 360])


def test_moments_far_from_those_of_most_devices_are_not_pooled() -> None:
    """The coordinator would refuse the gateway, if the units of its data seemed to be others."""
    devices = [device(name, 30, 0.1, 1.0) for name in "abc"]
    found = combine([device("Liar", 30, 0.1, 1e18), *devices])
    assert found.data.mean == pytest.approx((1.0,))
    assert found.data.examples == 120


def test_sums_of_large_claims_stay_within_what_a_profile_may_state() -> None:
    """Otherwise the coordinator rejects the profile of the gateway."""
    devices = [device(name, 2**40 - 1, 0.1, 0.0, watts=1e5) for name in "abc"]
    found = combine([replace(one, data=replace(one.data, held_out=2**40 - 1)) for one in devices])
    assert envelope.decode(envelope.encode(found)) == found
    check_card(found.data)


@pytest.mark.parametrize(
    "weak",
    [
        {"memory": 10},
        {"capabilities": ()},
        {"timings": ()},
        {"timings": (Timing(SMALL, 32, 2.0),)},
    ],
)
def test_one_weak_device_does_not_decide_for_a_site_of_three(weak: dict[str, object]) -> None:
    able = {"memory": 1000, "capabilities": ("adam",)}
    devices = [device(name, 30, 0.1, 0.0, **able) for name in "ab"]
    found = select_alike([*devices, device("c", 30, 0.1, 0.0, **{**able, **weak})])
    assert [one.agent for one in found] == ["a", "b"]


def test_devices_that_differ_a_little_all_count() -> None:
    devices = [device(name, 30, 0.1 * n, 0.0, memory=n) for n, name in enumerate("abcd", 3)]
    assert list(select_alike(devices)) == devices


def test_devices_that_each_lack_something_else_all_count() -> None:
    able = {"a": ("x", "y"), "b": ("y", "z"), "c": ("x", "z")}
    devices = [device(name, 30, 0.1, 0.0, capabilities=able[name]) for name in able]
    assert list(select_alike(devices)) == devices


def test_of_two_devices_neither_is_left_out() -> None:
    strong = device("a", 30, 0.001, 0.0, memory=10**9, capabilities=("adam",))
    weak = device("b", 30, 9.0, 0.0, memory=1, capabilities=())
    assert list(select_alike([strong, weak])) == [strong, weak]


@pytest.mark.parametrize(("names", "wanted"), [("Ga", "a"), ("Gab", "ab"), ("GHa", "GH")])
def test_most_devices_decide_whether_a_site_trains_with_exported_graphs(
    names: str, wanted: str
) -> None:
    """Else the first device that joins could keep all others out."""
    devices = [
        device(name, 30, 0.1, 0.0, capabilities=("graphs",) if name.isupper() else ("adam",))
        for name in names
    ]
    assert "".join(one.agent for one in select_alike(devices)) == wanted
