"""Combine the profiles of a site's devices into that of their gateway."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median_high, median_low

from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.assign.majority_network import find_outliers, pool_moments
from coordinator.trust.message_checks import EXAMPLES
from federated.install_command import NAME
from federated.runtime.provenance import versions
from federated.runtime.unit_formatting import format_count
from federated.task import MOST_WATTS, Card, Profile, Timing
from federated.trainer_capabilities import GRAPHS
from federated.wire import envelope
from federated.wire.codecs.catalogue import codec_names
from federated.wire.link import Probe

__all__ = ["GatewayFacts", "combine_profiles", "limit_cards", "select_alike", "sum_counts"]

MUCH = 10.0  # times the median: a device that differs by more is left out


@dataclass(frozen=True)
class GatewayFacts:
    """What a gateway's profile states about the gateway itself.

    name: of the gateway at the coordinator.
    labels: that its owner gave it.
    probe: of the uplink: bytes of the largest message, and bytes per second.
    """

    name: str
    labels: tuple[str, ...]
    probe: Probe


@dataclass(frozen=True)
class CountLimits:
    """The largest numbers with which one device of a site counts.

    examples: of training, and batches.
    held_out: examples of scores.
    """

    examples: int
    held_out: int


def limit_cards(cards: Collection[Card], ratio: float) -> CountLimits:
    """Return the limits: a multiple of the median over the devices, as at the coordinator. 0: only
    what a profile may state.
    """
    held_out = [one.held_out for one in cards if one.held_out]
    if not ratio or not cards:
        return CountLimits(EXAMPLES - 1, EXAMPLES - 1)
    most = limit_counts((one.examples for one in cards), ratio)
    return CountLimits(most, limit_counts(held_out, ratio) if held_out else 0)


def select_alike(devices: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return the devices that are about as able as most: the gateway promises only what each of
    them can do, so a single one that is far weaker, or says so, would decide for all.

    Left out is a device without a capability, or without the time of a submodel, that more than
    half of the devices have; with much less memory than the median; or that is much slower. Those
    that train with exported graphs are left out if they are not the majority: the gateway has one
    profile, and the coordinator sends training graphs or not.
    """
    exported = [one for one in devices if GRAPHS in one.capabilities]
    native = [one for one in devices if GRAPHS not in one.capabilities]
    devices = exported if len(exported) > len(native) else native
    if not devices:
        return ()
    able = Counter(name for one in devices for name in set(one.capabilities))
    seconds = [{(t.submodel, t.batch): t.seconds for t in one.timings} for one in devices]
    timed = [key for key, count in Counter(chain(*seconds)).items() if 2 * count > len(devices)]
    slowest = {
        key: MUCH * median_high(known[key] for known in seconds if key in known) for key in timed
    }
    least = median_low(one.memory for one in devices) / MUCH
    found = tuple(
        one
        for one, known in zip(devices, seconds, strict=True)
        if one.memory >= least
        and all(2 * able[name] <= len(devices) or name in one.capabilities for name in able)
        and all(known.get(key, math.inf) <= most for key, most in slowest.items())
    )
    return found or tuple(devices)  # if each lacks something else, none is the odd one


def combine_profiles(gateway: GatewayFacts, devices: Sequence[Profile], ratio: float) -> Profile:
    """Return the profile of a gateway. It promises what each of its devices can do: all of them get
    the submodel that the coordinator assigns to the gateway.

    ratio: see `limit_cards`.
    """
    capabilities = frozenset.intersection(*(frozenset(one.capabilities) for one in devices))
    watts = [one.watts for one in devices]
    chunk, uplink = gateway.probe
    limits = limit_cards([one.data for one in devices], ratio)
    return Profile(
        gateway.name,
        platform.node(),
        f"{platform.system()} {platform.release()}",
        min(one.cpus for one in devices),
        min(one.memory for one in devices),
        uplink,
        chunk,
        f"gateway of {format_count(len(devices), 'device')}",
        combine_cards([one.data for one in devices], limits),
        combine_timings(devices, limits),
        labels=gateway.labels,
        codecs=codec_names(),
        capabilities=tuple(sorted(capabilities)),
        watts=min(sum(watts), MOST_WATTS) if all(watts) else 0.0,
        devices=len(devices),
        protocol=envelope.PROTOCOL,
        software=f"edge-gateway {versions([NAME])[NAME]}".rstrip(),
    )


def sum_counts(cards: Iterable[Card], limits: CountLimits) -> tuple[int, int]:
    """Return the examples of all devices together, and those held out, as a profile states them."""
    examples = held_out = 0
    for card in cards:
        examples += min(card.examples, limits.examples)
        held_out += min(card.held_out, limits.held_out)
    return min(examples, EXAMPLES - 1), min(held_out, EXAMPLES - 1)


def combine_cards(cards: Sequence[Card], limits: CountLimits) -> Card:
    """Return the description of all data together. They have the same form. Moments that are far
    from those of most devices are left out.
    """
    odd = find_outliers({i: (c.mean, c.std) for i, c in enumerate(cards)})
    odd |= find_outliers({i: (c.shift, c.scale) for i, c in enumerate(cards)})
    usual = [
        (card, min(card.examples, limits.examples)) for i, card in enumerate(cards) if i not in odd
    ]
    mean, std = pool_moments([(c.mean, c.std, n) for c, n in usual])
    shift, scale = pool_moments([(c.shift, c.scale, n) for c, n in usual])
    first = usual[0][0]
    return Card(
        first.name,
        first.inputs,
        first.dtype,
        max(one.outputs for one in cards),
        *sum_counts(cards, limits),
        mean,
        std,
        first.target,
        shift,
        scale,
        first.vocabulary,
        first.tokenizer,
    )


def combine_timings(devices: Sequence[Profile], limits: CountLimits) -> tuple[Timing, ...]:
    """Return the timings of the submodels that all devices timed.

    The devices train at the same time, each on its own examples, while the coordinator predicts the
    time that one device takes for all of them. So a step of the gateway takes a device's share of
    all examples times its seconds, of the device that takes longest.
    """
    counts = [min(one.data.examples, limits.examples) for one in devices]
    seconds = [{(t.submodel, t.batch): t.seconds for t in one.timings} for one in devices]
    return tuple(
        Timing(
            timing.submodel,
            timing.batch,
            max(
                known[timing.submodel, timing.batch] * count / sum(counts)
                for known, count in zip(seconds, counts, strict=True)
            ),
        )
        for timing in devices[0].timings
        if all((timing.submodel, timing.batch) in known for known in seconds)
    )
