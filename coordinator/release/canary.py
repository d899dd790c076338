"""Choose the agents that get a release first (the canary), and judge from their reports whether all
others may get it. Pure functions.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.release.history import ReportType
from export.release_reader import Bundle
from federated.errors import FleetError, Unknown, UsageError
from federated.runtime.unit_formatting import format_count
from federated.wire.release_messages import Serving

__all__ = ["Verdict", "draw_agents", "judge", "select_reports", "split_names"]

LOSS = 0.01  # accuracy that a version may lose
SLOWER = 1.2  # allowed ratio of latencies (p90)
SLACK = 0.5e-3  # seconds: a smaller difference is due to the system's scheduling


@dataclass(frozen=True)
class Verdict:
    """The result of a canary.

    reasons: what speaks against promotion; empty for a good version.
    notes: what was compared, or could not be.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.reasons


def draw_agents(
    share: str, version: str, known: Collection[str], others: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the agents of a canary: a percentage (`10%`) of the known ones, rounded up, a number
    (`3`) of them, or the named ones, which may also be among `others`.

    The draw follows a hash of version and agent: the same command draws the same agents, another
    version draws others. Raises UsageError for an invalid share, FleetError if no agent is known,
    Unknown for an unknown name.
    """
    if named := split_names(share):
        for name in named:
            if name not in known and name not in others:
                raise Unknown("agent", name, {*known, *others})
        return tuple(sorted(set(named)))
    if not known:
        raise FleetError(
            "cannot draw a canary: no agent serves a release or took part in the run; "
            "name agents with --canary NAME,NAME"
        )
    ratio = float(share[:-1]) / 100 if share.endswith("%") else None
    wanted = int(share) if ratio is None else math.ceil(round(len(known) * ratio, 9))
    if wanted > len(known):
        raise UsageError(
            f"--canary: expected a number of agents from 1 to {len(known)}, found {share}"
        )
    chosen = sorted(
        known, key=lambda agent: hashlib.sha256(f"{version}/{agent}".encode()).digest()
    )[:wanted]
    return tuple(sorted(chosen))


def split_names(share: str) -> list[str]:
    """Return the names of a canary's agents; empty for a percentage or a number. Raises UsageError
    for an invalid share.
    """
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", share)
    if percent or share.isdecimal():
        if not 0 < float(share.removesuffix("%")) <= (100 if percent else math.inf):
            raise UsageError(
                "--canary: expected a percentage above 0% and at most 100%, or a number of agents "
                f"from 1, found {share}"
            )
        return []
    names = [name.strip() for name in share.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names):
        raise UsageError(
            "--canary: expected a percentage such as 10%, a number of agents, or names such "
            f"as pi,phone; found '{share}'"
        )
    return names


def select_reports(
    agents: Sequence[str], version: str, servings: Mapping[str, ReportType]
) -> dict[str, ReportType]:
    """Return the reports of these agents that they have a version, or refuse it."""
    return {
        agent: servings[agent]
        for agent in agents
        if agent in servings and version in (servings[agent].version, servings[agent].refused)
    }


def judge(
    version: str,
    agents: Sequence[str],
    reports: Mapping[str, Serving],
    before: Mapping[str, Serving],
    made: Bundle,
    stable: tuple[str, Bundle] | None,
) -> Verdict:
    """Judge whether a canary may be promoted.

    version: its name.
    agents: those that got it.
    reports: of agents about the canary.
    before: what the agents served until then.
    made: the canary's manifest.
    stable: name and manifest of the stable version; None if there is none.

    Reasons against it are: no report; a report of a refusal; accuracy lower by more than LOSS,
    pooled over the agents' own examples (without any: from the manifests); p90 more than SLOWER
    times as long on the same submodel, as the median over agents. From three agents, those quarters
    of them with the largest gains and losses of accuracy are left out, so that no single agent
    decides.
    """
    heard = select_reports(agents, version, reports)
    refused = [
        f"{agent} refused it: {one.reason or 'no reason given'}"
        for agent, one in sorted(heard.items())
        if one.refused == version
    ]
    serving = {agent: one for agent, one in heard.items() if one.version == version}
    silent = sorted(set(agents) - heard.keys())
    reasons, notes = refused, [f"no report from {', '.join(silent)}"] if silent and heard else []
    if not heard:
        whole = format_count(len(agents), "agent")
        reasons.append(f"no report from any of its {whole} ({', '.join(silent)})")
    if stable is None:
        return Verdict(
            tuple(reasons), (*notes, "no stable version to compare with: only the self-tests count")
        )
    pairs = {agent: _find_past(one, before.get(agent), stable[0]) for agent, one in serving.items()}
    for bad, text in (
        _compare_accuracy(serving, pairs, made, stable[1]),
        _compare_latency(serving, pairs),
    ):
        if text:
            (reasons if bad else notes).append(text)
    return Verdict(tuple(reasons), tuple(notes))


@dataclass(frozen=True)
class Past:
    """The performance of the stable version on one agent.

    submodel: that it served.
    p90: latency, seconds.
    accuracy: on the agent's own examples.
    """

    submodel: str
    p90: float | None
    accuracy: float | None


def _find_past(report: Serving, before: Serving | None, stable: str) -> Past | None:
    """Return the values that the agent measured beside the canary, else those reported before."""
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


def _compare_accuracy(
    serving: Mapping[str, Serving], pairs: Mapping[str, Past | None], made: Bundle, stable: Bundle
) -> tuple[bool, str]:
    """Return a pair: True if accuracy was lost, and the comparison in words."""
    rows = [
        (one.examples, past.accuracy, one.accuracy)
        for agent, one in serving.items()
        if (past := pairs[agent]) is not None
    ]
    measured = [(n, old, new) for n, old, new in rows if n and old is not None and new is not None]
    if measured:
        most, count = limit_counts(n for n, _, _ in measured), len(measured)
        measured.sort(key=lambda row: row[2] - row[1])
        out = (count + 1) // 4
        kept = [(min(n, most), old, new) for n, old, new in measured[out : count - out]]
        total = sum(n for n, _, _ in kept)
        old, new = (sum(row[0] * row[which] for row in kept) / total for which in (1, 2))
        agents = format_count(count, "agent")
        if out:
            agents = f"{len(kept)} of {agents}, without the largest gains and losses"
        what = f"accuracy on {format_count(total, 'example')} of {agents}"
    else:
        listed = [
            (_read_accuracy(stable, one), _read_accuracy(made, one)) for one in serving.values()
        ]
        both = [(a, b) for a, b in listed if a is not None and b is not None]
        if not both:
            return (
                False,
                "accuracy could not be compared: neither agents nor manifests report it"
                if serving
                else "",
            )
        old, new = (statistics.fmean(pair[which] for pair in both) for which in (0, 1))
        what = "accuracy at export"
    return new < old - LOSS - 1e-9, f"{what}: {new:.3f}, stable version {old:.3f}"


def _read_accuracy(bundle: Bundle, report: Serving) -> float | None:
    """Return the accuracy in a manifest of the graph that an agent serves; without that variant, of
    its submodel's first graph.
    """
    for entry in bundle.submodels:
        if entry.submodel == report.submodel:
            return next(
                (variant.accuracy for variant in entry.variants if variant.kind == report.variant),
                entry.variants[0].accuracy,
            )
    return None


def _compare_latency(
    serving: Mapping[str, Serving], pairs: Mapping[str, Past | None]
) -> tuple[bool, str]:
    """Return a pair: True if latency increased, and the comparison in words."""
    rows = [
        (past.p90, one.p90)
        for agent, one in serving.items()
        if (past := pairs[agent]) is not None and past.submodel == one.submodel
    ]
    times = [(old, new) for old, new in rows if old and new is not None]
    if not times:
        return (
            False,
            "latency could not be compared: no agent measured both versions on the same submodel"
            if serving
            else "",
        )
    ratio = statistics.median(new / old for old, new in times)
    more = statistics.median(new - old for old, new in times)
    return (
        ratio > SLOWER and more > SLACK,
        f"p90 is {ratio:.2f} times that of the stable version, {1e3 * more:+.2f} ms "
        f"(median of {format_count(len(times), 'agent')})",
    )
