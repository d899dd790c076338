"""Do what `coordinator upgrade` asks for: name the wanted version of the agents' software, for a
few devices first (the canary) or for all, and take it back.

A device follows only if its owner lets it, and installs from the owner's package index.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from coordinator import audit_log
from coordinator.release import canary
from coordinator.release import history as releases
from coordinator.release.history import Item, SoftwareHistory
from coordinator.release.history_file import HistoryFile
from coordinator.release.release_status import describe_history, say_versions
from coordinator.release.rollout import open_run_link
from coordinator.release.staged_release import StagedRelease, format_now
from coordinator.settings.config import read_tables
from coordinator.store.run_database_reader import open_records
from coordinator.store.run_folders import DATABASE
from coordinator.upgrade.agent_selection import select_agents
from coordinator.upgrade.device_health import Health, find_settled, judge
from coordinator.upgrade.published_software import read_published
from coordinator.upgrade.upgrade_request import (
    UpgradeRequest,
    check_flags,
    describe_request,
    make_software,
)
from export.broker_publishing import announce, confirm
from federated.errors import ExportError, FleetError
from federated.runtime.console import Say
from federated.safe_terminal_table import make_table, render_table
from federated.task import Profile
from federated.wire.link import Link
from federated.wire.release_messages import Installed, Software, SoftwareCard

__all__ = ["AgentUpgrade", "upgrade_run"]

FOLDER = "upgrades"  # of a run, with the history
CANARY_WAIT = 7200.0  # seconds for the devices of a canary to install a version and answer a task
WINDOW = 20  # rounds before an order whose tasks are compared with those after it
LOOK = 1.0  # seconds between two looks into the run's records
WIDTH = 200  # columns of the table
NAMED = 20  # agents without a report that are named


def upgrade_run(request: UpgradeRequest, runs: Path, say: Say) -> dict[str, Any]:
    """Do what `coordinator upgrade` is asked to do; return its result as plain values, with `error`
    if it must exit with status 8. Raises UsageError, Unknown, StoreError, ConfigError, ExportError,
    FleetError, LinkError.
    """
    check_flags(request)
    with closing(open_records(runs, request.run)):
        pass  # raises StoreError for an unknown run
    file: HistoryFile[Software, Installed] = HistoryFile(
        runs / request.run / FOLDER, request.run, SoftwareHistory
    )
    file.read()  # report a damaged history before anything happens
    if not request.status:
        audit_log.record(runs / request.run / DATABASE, None, *describe_request(request))
    with closing(open_run_link(request.run, request.broker, runs)) as link:
        return AgentUpgrade(link, file, runs, say).follow(request)


class AgentUpgrade(StagedRelease[Software, Installed]):
    """The software of one run's agents."""

    wait = 0.0  # devices ask every half hour or so
    verb, kept = "install", "its devices go back to their previous version"

    def __init__(
        self, link: Link, file: HistoryFile[Software, Installed], runs: Path, say: Say
    ) -> None:
        super().__init__(file, say)
        self._link, self._runs = link, runs
        self.seen = read_published(link, self.run)
        self._joined = dict[tuple[str, str], int]()  # version, agent -> finished rounds then
        self._looked, self._health = -LOOK, Health()

    def follow(self, request: UpgradeRequest) -> dict[str, Any]:
        """Carry out a request. Raises as `upgrade_run` does."""
        if request.status:
            return self._report(self._collect_reports())
        if request.rollback:
            self._withdraw()
            return self._report(self._collect_reports())
        if request.version is not None:
            self._order(request)
        elif not request.promote:
            with self._file.lock():
                self._write(self._file.read())
        history = self._file.read()
        if history.canary and (request.promote or request.share is not None):
            wait = CANARY_WAIT if request.wait is None else request.wait
            self._wait_for_reports(history.agents, wait)
        if request.promote and request.version is not None:
            return self._decide(force=request.force)
        if request.promote:
            return self._promote_by_command(0.0, force=request.force)
        return self._report(self._collect_reports())

    def _order(self, request: UpgradeRequest) -> None:
        """Order a version, for all agents or for a canary."""
        with closing(open_records(self._runs, self.run)) as records:
            profiles, rounds = records.agents.read_profiles(), records.rounds_done
            broker = read_tables(records.read_facts().config).broker
        selected = select_agents(profiles, request, broker)
        limited = request.labels or request.groups
        software = make_software(request, rounds, selected if limited else ())
        name = software.name
        with self._file.lock():
            old = self._file.read()
            rolled_back = releases.find_rollback_event(old, name)
            if rolled_back is not None and not request.force:
                raise ExportError(
                    f"version {name} was rolled back at {rolled_back.time}: "
                    f"{'; '.join(rolled_back.reasons)}; use --force to order it anyway"
                )
            item: Item[Software, Installed] = Item(software, before=dict(self.seen.reports))
            if request.share is None:
                self._say(f"version {name} is wanted on {describe_scope(software)}")
                changed = releases.release(old, item, format_now())
            else:
                agents = self._draw(request.share, name, selected)
                self._say(f"version {name} is wanted on {', '.join(agents)} first")
                changed = releases.start_canary(old, item, agents, format_now())
            self._write(changed)

    def _draw(self, share: str, version: str, selected: Sequence[str]) -> tuple[str, ...]:
        """Return the agents of a canary: of those whose devices follow. Raises as
        `canary.draw_agents` does.
        """
        following = sorted(set(self.seen.reports) & set(selected))
        if not following and not canary.split_names(share):
            raise FleetError(
                "cannot draw a canary: no device of these agents follows the wanted version: let "
                "them run edge-agent update --wanted (docs/operations.md#upgrade-many-devices)"
            )
        return canary.draw_agents(share, version, following, selected)

    # ---- steps of a staged release ---------------------------------------------------------------

    def _get_reports(self) -> Mapping[str, Installed]:
        return self.seen.reports

    def _receive(self, seconds: float) -> None:
        delivery = self._link.receive(seconds)
        if delivery is not None:
            self.seen.hear(delivery)

    def _list_done(self, agents: Sequence[str], version: str) -> set[str]:
        if time.monotonic() - self._looked >= LOOK:
            self._health, self._looked = self._read_health(self._file.read()), time.monotonic()
        return find_settled(agents, version, self.seen.reports, self._health)

    def _judge(self, history: SoftwareHistory) -> canary.Verdict:
        health = self._read_health(history)
        verdict = judge(history.canary, history.agents, self.seen.reports, health)
        for note in verdict.notes:
            self._say(note)
        return verdict

    def _write(self, history: SoftwareHistory) -> None:
        self._file.write(history)
        card, self.seen.card = build_card(history), None  # until the broker shows it
        announce(self._link, card)
        confirm(self._link, self.seen, card, time.monotonic)

    def _report(self, history: SoftwareHistory) -> dict[str, Any]:
        with closing(open_records(self._runs, self.run)) as records:
            profiles = records.agents.read_profiles()
        rows = [
            describe_agent(report, profiles.get(agent), history)
            for agent, report in sorted(self.seen.reports.items())
        ]
        say_versions(history, self._say)
        if rows:
            self._say(draw_table(rows))
        silent = sorted(profiles.keys() - self.seen.reports.keys())
        if silent:
            more = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
            named = ", ".join(silent[:NAMED])
            self._say(f"no report from {named}{more}: nothing is installed there")
        return describe_history(history) | {"reports": rows, "silent": silent}

    def _read_health(self, history: SoftwareHistory) -> Health:
        """Read which agents of the canary joined with it, and how their tasks ended."""
        if not history.canary:
            return Health()
        software, name = history.items[history.canary].version, history.canary
        with closing(open_records(self._runs, self.run)) as records:
            profiles, rounds = records.agents.read_profiles(), records.rounds_done
            joined = [
                agent
                for agent in history.agents
                if (report := self.seen.reports.get(agent)) is not None
                and report.version == name
                and agent in profiles
                and read_release(profiles[agent]) == software.release
            ]
            since = defaultdict[int, list[str]](list)
            for agent in joined:
                since[self._joined.setdefault((name, agent), rounds)].append(agent)
            after = dict[str, tuple[int, int]]()
            for start, agents in since.items():
                counts = records.count_tasks(start, rounds)
                after |= {agent: counts[agent] for agent in agents if agent in counts}
            before = records.count_tasks(software.round - WINDOW, software.round)
        return Health(joined, before, after)


def describe_scope(software: Software) -> str:
    return ", ".join(software.agents) or "all agents"


def build_card(history: SoftwareHistory) -> SoftwareCard:
    """Return the card that tells devices what is wanted."""
    stable, tried = (
        history.items[name].version if name else None for name in (history.stable, history.canary)
    )
    last = next((one for one in reversed(history.events) if one.what == "rolled back"), None)
    wanted = (history.stable, history.canary)
    withdrawn = last.version if last is not None and last.version not in wanted else ""
    return SoftwareCard(history.run, stable, tried, history.agents, withdrawn)


def read_release(profile: Profile) -> str:
    """Return the version of an agent's program; empty if it is unknown."""
    return profile.software.rpartition(" ")[2]


def describe_agent(
    report: Installed, profile: Profile | None, history: SoftwareHistory
) -> dict[str, Any]:
    """Return what is known of one agent's software."""
    wanted = history.canary if report.agent in history.agents else history.stable
    state = (
        "refused"
        if report.refused and report.refused == wanted
        else "installed"
        if report.version and report.version == wanted
        else "waiting"
        if wanted
        else "free"
    )
    return {
        "agent": report.agent,
        "installed": report.version or report.release,
        "joined": read_release(profile) if profile is not None else "",
        "wanted": wanted,
        "state": state,
        "reason": report.reason,
    }


def draw_table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = ("agent", "installed", "joined", "wanted", "state", "reason")
    table = make_table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) or "-" for column in columns))
    return render_table(table, WIDTH, styled=False)
