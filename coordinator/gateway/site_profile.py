"""Combine the profiles of a site's devices into that of their gateway."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.assign.majority_network import pool_moments
from federated.install_command import NAME
from federated.runtime.provenance import versions
from federated.runtime.unit_formatting import format_count
from federated.task import Card, Profile, Timing
from federated.wire import envelope
from federated.wire.codecs.catalogue import codec_names
from federated.wire.link import Probe

__all__ = ["GatewayFacts", "combine_profiles"]


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


def combine_profiles(gateway: GatewayFacts, devices: Sequence[Profile]) -> Profile:
    """Return the profile of a gateway. It promises what each of its devices can do: all of them get
    the submodel that the coordinator assigns to the gateway.
    """
    capabilities = frozenset.intersection(*(frozenset(one.capabilities) for one in devices))
    watts = [one.watts for one in devices]
    chunk, uplink = gateway.probe
    return Profile(
        gateway.name,
        platform.node(),
        f"{platform.system()} {platform.release()}",
        min(one.cpus for one in devices),
        min(one.memory for one in devices),
        uplink,
        chunk,
        f"gateway of {format_count(len(devices), 'device')}",
        combine_cards([one.data for one in devices]),
        combine_timings(devices),
        labels=gateway.labels,
        codecs=codec_names(),
        capabilities=tuple(sorted(capabilities)),
        watts=sum(watts) if all(watts) else 0.0,
        devices=len(devices),
        protocol=envelope.PROTOCOL,
        software=f"edge-gateway {versions([NAME])[NAME]}".rstrip(),
    )


def combine_cards(cards: Sequence[Card]) -> Card:
    """Return the description of all data together. They have the same form.

    No device counts with more than ten times the median number of examples (see `limit_counts`).
    """
    most = limit_counts(one.examples for one in cards)
    counts = [min(one.examples, most) for one in cards]
    mean, std = pool_moments([(c.mean, c.std, n) for c, n in zip(cards, counts, strict=True)])
    shift, scale = pool_moments([(c.shift, c.scale, n) for c, n in zip(cards, counts, strict=True)])
    first = cards[0]
    return Card(
        first.name,
        first.inputs,
        first.dtype,
        max(one.outputs for one in cards),
        sum(counts),
        sum(min(one.held_out, most) for one in cards),
        mean,
        std,
        first.target,
        shift,
        scale,
        first.vocabulary,
        first.tokenizer,
    )


def combine_timings(devices: Sequence[Profile]) -> tuple[Timing, ...]:
    """Return the timings of the submodels that all devices timed.

    The devices train at the same time, each on its own examples, while the coordinator predicts the
    time that one device takes for all of them. So a step of the gateway takes a device's share of
    all examples times its seconds, of the device that takes longest.
    """
    most = limit_counts(one.data.examples for one in devices)
    counts = [min(one.data.examples, most) for one in devices]
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
