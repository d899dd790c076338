"""Judge from reports and from the run's records whether the devices of a canary are healthy with
another version of the software. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.release.canary import Verdict, select_reports
from federated.runtime.unit_formatting import format_count
from federated.wire.release_messages import Installed

__all__ = ["Health", "find_settled", "judge"]


@dataclass(frozen=True)
class Health:
    """What the run's records say about some agents.

    joined: agents that joined the run with the version.
    before, after: number of folded updates and of tasks of each agent, in the last rounds before
        the version was ordered, and since the agent joined with it.
    """

    joined: Collection[str] = ()
    before: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    after: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def find_settled(
    agents: Sequence[str], version: str, reports: Mapping[str, Installed], health: Health
) -> set[str]:
    """Return the agents that refused a version, or answered a task with it."""
    heard = select_reports(agents, version, reports)
    answered = {agent for agent, (folded, _) in health.after.items() if folded}
    return {
        agent
        for agent, one in heard.items()
        if one.refused == version or (agent in health.joined and agent in answered)
    }


def judge(
    version: str, agents: Sequence[str], reports: Mapping[str, Installed], health: Health
) -> Verdict:
    """Judge whether a canary may be promoted.

    Reasons against it are: an agent that refused or left it; no report; an agent that has not
    joined the run with it; no answered task; more tasks without an accepted update than before, as
    a fraction of the tasks of all these agents.
    """
    heard = select_reports(agents, version, reports)
    refused = {agent: one for agent, one in heard.items() if one.refused == version}
    reasons = [
        f"{agent} refused it: {one.reason or 'no reason given'}"
        for agent, one in sorted(refused.items())
    ]
    if silent := sorted(set(agents) - heard.keys()):
        told = [f"{a} ({reports[a].reason})" for a in silent if a in reports and reports[a].reason]
        reasons.append(f"not installed yet by {', '.join(told or silent)}")
    installed = sorted(heard.keys() - refused.keys())
    if away := [agent for agent in installed if agent not in health.joined]:
        reasons.append(f"{', '.join(away)} installed it, but did not join the run with it")
    return Verdict(tuple(reasons), ()) if reasons else compare_tasks(installed, health)


def compare_tasks(agents: Sequence[str], health: Health) -> Verdict:
    """Compare the tasks of agents before and after."""
    (kept, asked), (folded, tasks) = (
        tuple(sum(counts.get(agent, (0, 0))[i] for agent in agents) for i in (0, 1))
        for counts in (health.before, health.after)
    )
    if not folded:
        return Verdict((f"none of {format_count(len(agents), 'agent')} answered a task yet",), ())
    failed, before = tasks - folded, asked - kept
    # without a record of earlier tasks, none may fail
    allowed = math.ceil(before / asked * tasks - 1e-9) if asked else 0
    text = f"{failed} of {format_count(tasks, 'task')} failed, before {before} of {asked}"
    return Verdict((text,), ()) if failed > allowed else Verdict((), (text,))
