"""Make the false messages of a malicious agent: profiles, offers, heartbeats and updates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.fault_schedules.virtual_links import VirtualLink
from federated.errors import WireError
from federated.task import Profile, Update
from federated.wire import envelope, messages
from federated.wire.link import Payload

__all__ = ["LyingLink", "falsify_profile", "falsify_update"]

SHARE = 0.5  # fraction of false offers and heartbeats; profiles and updates are always false


def falsify_profile(profile: Profile, rng: random.Random) -> Profile:
    """Return a profile that must be rejected, or that harms no other agent."""
    factor = rng.choice((1e-9, 1e-6, 1e6, 1e9))
    lies: list[Callable[[], Profile]] = [
        lambda: replace(
            profile,
            timings=tuple(replace(one, seconds=one.seconds * factor) for one in profile.timings),
        ),
        lambda: replace(profile, timings=()),
        lambda: replace(profile, memory=rng.choice((0, 1, 2**62))),
        lambda: replace(profile, uplink=rng.choice((1e-9, 1e15))),
        lambda: replace(profile, chunk=rng.choice((1, 2**30))),
        lambda: replace(profile, cpus=rng.choice((1e-9, 1e9))),
        lambda: replace(profile, data=replace(profile.data, examples=2**39)),
        lambda: replace(profile, data=replace(profile.data, held_out=2**39)),
        lambda: replace(profile, data=replace(profile.data, outputs=5)),
        lambda: replace(profile, survey={"zico": {"w1": 1e99}}),
    ]
    return rng.choice(lies)()


def falsify_update(update: Update, rng: random.Random) -> Update:
    """Return an update that must be rejected, or that harms no other agent."""
    first = next(iter(update.tensors), "")
    lies: list[Callable[[], Update]] = [
        lambda: replace(update, round=update.round + 1),
        lambda: replace(update, agent="a0"),
        lambda: replace(update, samples=2**40),
        lambda: replace(update, steps=0),
        lambda: replace(update, notes={**update.notes, "loss": math.nan}),
        lambda: replace(
            update,
            notes={
                **update.notes,
                "tallies": {"all": {"count": [1e300], "loss": [-1.0], "right": [1e300]}},
            },
        ),
        lambda: replace(update, notes={}),
        lambda: replace(update, tensors={}),
        lambda: (
            replace(
                update,
                tensors={**update.tensors, first: np.full_like(update.tensors[first], np.nan)},
            )
            if first
            else update
        ),
        lambda: (
            replace(
                update, tensors={**update.tensors, first: np.full_like(update.tensors[first], 1e30)}
            )
            if first
            else update
        ),
        lambda: replace(update, tensors={**update.tensors, "other": np.zeros(10, np.float32)}),
    ]
    return rng.choice(lies)()


def falsify_message(message: messages.Message, rng: random.Random) -> messages.Message:
    """Return an offer of another size, digest or round, or a false heartbeat."""
    match message:
        case messages.Offer(manifest):
            lies: list[dict[str, Any]] = [
                {"manifest": replace(manifest, size=rng.choice((1, manifest.size + 1, 2**50)))},
                {"manifest": replace(manifest, sha256="0" * 64)},
                {"manifest": replace(manifest, chunk=messages.MIN_CHUNK)},
                {"round": message.round + 1},
                {"work": rng.choice(("calibrate", "evaluate", "train"))},
                {"submodel": "w0.01"},
            ]
            return replace(message, **rng.choice(lies))
        case messages.Heartbeat():
            return replace(
                message,
                step=rng.choice((0, 2**62)),
                state=rng.choice(("train", "download", "send", "idle")),
            )
    return message


class LyingLink(VirtualLink):
    """Link of a malicious agent."""

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        if self.world.random.random() < SHARE and payload:
            with suppress(WireError):  # chunks are not messages
                payload = envelope.encode(
                    falsify_message(envelope.decode(bytes(payload)), self.world.random)
                )
        super().publish(topic, payload, retain=retain, qos=qos)
