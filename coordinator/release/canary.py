"""A canary: which agents have a version first, and whether what they report speaks for it. Pure
functions.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from export.bundle import Bundle
from federated.errors import FleetError, Unknown, UsageError
from federated.wire.release_files import Serving

__all__ = ["LOSS", "SLACK", "SLOWER", "Verdict", "drawn", "judged", "said"]

LOSS = 0.01  # accuracy that a version may lose
SLOWER = 1.2  # times the latency (p90) that it may take
SLACK = 0.5e-3  # seconds: less than this is the system's scheduling, not the network


@dataclass(frozen=True)
class Verdict:
    """reasons: what speaks against a version; without any it is good. notes: what was compared, or
    could not be.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.reasons


def drawn(
    share: str, version: str, known: Collection[str], others: Collection[str] = ()
) -> tuple[str, ...]:
    """The agents of a canary: `10%` of the known ones (rounded up), `3` of them, or those named,
    which may be others.

    Drawn by a hash of version and agent: the same command draws the same agents, and another
    version others.
    Raises UsageError for what is no such share, FleetError where nobody is known, Unknown for a
    name that is not.
    """
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", share)
    if not percent and not share.isdecimal():
        return _named(share, {*known, *others})
    if not known:
        raise FleetError(
            "no agent is known: none answers with a release, and none took part in the "
            "run; name some by --canary NAME,NAME"
        )
    wanted = math.ceil(round(len(known) * float(percent[1]) / 100, 9)) if percent else int(share)
    if not 1 <= wanted <= len(known) or (percent and not 0 < float(percent[1]) <= 100):
        raise UsageError(
            f"--canary: expected a share above 0% and up to 100%, or 1 to {len(known)} "
            f"agents, found {share}"
        )
    chosen = sorted(
        known, key=lambda agent: hashlib.sha256(f"{version}/{agent}".encode()).digest()
    )[:wanted]
    return tuple(sorted(chosen))


def _named(share: str, known: Collection[str]) -> tuple[str, ...]:
    names = [name.strip() for name in share.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names):
        raise UsageError(
            "--canary: expected a share such as 10%, a number of agents, or names such "
            f"as pi,phone; found '{share}'"
        )
    for name in names:
        if name not in known:
            raise Unknown("agent", name, known)
    return tuple(sorted(set(names)))


def said(
    agents: Sequence[str], version: str, servings: Mapping[str, Serving]
) -> dict[str, Serving]:
    """What these agents say of a version: that they answer with it, or that they refuse it."""
    return {
        agent: servings[agent]
        for agent in agents
        if agent in servings and version in (servings[agent].version, servings[agent].refused)
    }


def judged(
    version: str,
    agents: Sequence[str],
    reports: Mapping[str, Serving],
    before: Mapping[str, Serving],
    made: Bundle,
    stable: tuple[str, Bundle] | None,
) -> Verdict:
    """Whether a canary may go to all.

    reports: what agents say of it; before: what they answered with until then. made: the canary's
    manifest; stable: the version that is to be replaced, and its manifest, None where there is
    none. Against it speak: no report; a report that it was refused; pooled accuracy on the agents'
    own examples (where they have none: the manifests') lower by more than LOSS; p90 on the same
    submodel more than SLOWER times as long, as the median over agents.
    """
    heard = said(agents, version, reports)
    refused = [
        f"{agent} refused it: {one.reason or 'no reason given'}"
        for agent, one in sorted(heard.items())
        if one.refused == version
    ]
    taken = {agent: one for agent, one in heard.items() if one.version == version}
    silent = sorted(set(agents) - heard.keys())
    reasons, notes = (
        list(refused),
        [f"no report from {', '.join(silent)}"] if silent and heard else [],
    )
    if not heard:
        reasons.append(f"none of its {len(agents)} agents reported ({', '.join(silent)})")
    if stable is None:
        return Verdict(
            tuple(reasons), (*notes, "nothing was stable before: only the self-tests count")
        )
    pairs = {agent: _pair(one, before.get(agent), stable[0]) for agent, one in taken.items()}
    for bad, told in (_accuracy(taken, pairs, made, stable[1]), _latency(taken, pairs)):
        if told:
            (reasons if bad else notes).append(told)
    return Verdict(tuple(reasons), tuple(notes))


@dataclass(frozen=True)
class Past:
    """What the stable version did on one agent: its submodel, seconds, accuracy."""

    submodel: str
    p90: float | None
    accuracy: float | None


def _pair(report: Serving, before: Serving | None, stable: str) -> Past | None:
    """Measured beside the canary where the agent did so, else as it was reported before."""
    known = before if before is not None and before.version == stable else None
    submodel = known.submodel if known is not None else report.submodel
    if report.before == stable and report.p90_before is not None:
        accuracy = (
            report.accuracy_before
            if report.accuracy_before is not None
            else known.accuracy
            if known is not None
            else None
        )
        return Past(submodel, report.p90_before, accuracy)
    return Past(submodel, known.p90, known.accuracy) if known is not None else None


def _accuracy(
    taken: Mapping[str, Serving], pairs: Mapping[str, Past | None], made: Bundle, stable: Bundle
) -> tuple[bool, str]:
    """Whether accuracy was lost, in words."""
    rows = [
        (one.examples, past.accuracy, one.accuracy)
        for agent, one in taken.items()
        if (past := pairs[agent]) is not None
    ]
    measured = [(n, old, new) for n, old, new in rows if n and old is not None and new is not None]
    if measured:
        total = sum(n for n, _, _ in measured)
        old, new = (sum(row[0] * row[which] for row in measured) / total for which in (1, 2))
        what = f"accuracy on {total} examples of {len(measured)} agents"
    else:
        listed = [(_listed(stable, one), _listed(made, one)) for one in taken.values()]
        both = [(a, b) for a, b in listed if a is not None and b is not None]
        if not both:
            return (
                False,
                "accuracy could not be compared: neither agents nor manifests say any"
                if taken
                else "",
            )
        old, new = (statistics.fmean(pair[which] for pair in both) for which in (0, 1))
        what = "accuracy where it was exported"
    return new < old - LOSS - 1e-9, f"{what}: {new:.3f}, of the stable version {old:.3f}"


def _listed(bundle: Bundle, report: Serving) -> float | None:
    """What a manifest says of the graph that an agent answers with; of its submodel's first, where
    it has no such variant.
    """
    for entry in bundle.submodels:
        if entry.submodel == report.submodel:
            return next(
                (variant.accuracy for variant in entry.variants if variant.kind == report.variant),
                entry.variants[0].accuracy,
            )
    return None


def _latency(taken: Mapping[str, Serving], pairs: Mapping[str, Past | None]) -> tuple[bool, str]:
    """Whether answers take longer, in words."""
    rows = [
        (past.p90, one.p90)
        for agent, one in taken.items()
        if (past := pairs[agent]) is not None and past.submodel == one.submodel
    ]
    times = [(old, new) for old, new in rows if old and new is not None]
    if not times:
        return (
            False,
            "latency could not be compared: no agent measured both versions on the same submodel"
            if taken
            else "",
        )
    ratio = statistics.median(new / old for old, new in times)
    more = statistics.median(new - old for old, new in times)
    return (
        ratio > SLOWER and more > SLACK,
        f"p90 is {ratio:.2f} times that of the stable version, {1e3 * more:+.2f} ms "
        f"(median of {len(times)} agents)",
    )
