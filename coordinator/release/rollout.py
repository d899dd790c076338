"""Do what `coordinator release` asks for: release a run's result to the agents that serve it, to a
few first (the canary) or to all, and roll it back.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coordinator import audit_log
from coordinator.access.broker_address import add_certificate, find_broker
from coordinator.broker.broker_profiles import find_profile, limit_link
from coordinator.release import canary
from coordinator.release import history as releases
from coordinator.release.archive import Archive
from coordinator.release.history import Item, ModelHistory
from coordinator.release.release_request import ReleaseRequest, check_flags, describe_request
from coordinator.release.release_status import report
from coordinator.release.serving_choice import assign_missing, choose_serving, read_order
from coordinator.release.staged_release import WAIT, StagedRelease, format_now
from coordinator.settings.config import read_tables
from coordinator.store import run_lock
from coordinator.store.run_database_reader import open_records
from coordinator.store.run_folders import DATABASE
from export import release_reader
from export.broker_publishing import (
    PublishedReleases,
    announce,
    confirm,
    describe_version,
    publish,
    read_published,
    withdraw,
)
from federated.errors import ExportError, LinkError, StoreError
from federated.runtime.console import Say, show_progress
from federated.runtime.unit_formatting import format_count
from federated.wire.link import Link, get_scheme
from federated.wire.links.catalogue import open_link
from federated.wire.messages import Manifest
from federated.wire.release_messages import Serving, Version

__all__ = ["Rollout", "open_run_link", "release_run"]

CANARY_WAIT = 60.0  # seconds for the agents of a canary to report


def release_run(request: ReleaseRequest, runs: Path, say: Say) -> dict[str, Any]:
    """Do what `coordinator release` is asked to do; return its result as plain values, with `error`
    if it must exit with status 8.
    Raises UsageError, Unknown, StoreError, ConfigError, ExportError, FleetError, LinkError.
    """
    check_flags(request)
    trained, order, rounds = _read_run(runs, request.run)
    archive = Archive(runs, request.run)
    archive.read()  # report a damaged history before anything happens
    if request.broker is None and request.status:
        say("reports as of the last command; add --broker HOST to get the present ones")
        return report(
            archive.read(), PublishedReleases(servings=releases.list_reports(archive.read())), say
        )
    if not request.status:
        audit_log.record(runs / request.run / DATABASE, request.by, *describe_request(request))
    with closing(open_run_link(request.run, request.broker, runs)) as link:
        return Rollout(link, archive, trained, rounds, say, order).follow(request)


class Rollout(StagedRelease[Version, Serving]):
    """One run's releases at one broker."""

    def __init__(
        self,
        link: Link,
        archive: Archive,
        trained: Mapping[str, str],
        rounds: int,
        say: Say,
        order: Sequence[str] = (),
    ) -> None:
        """trained: the submodel that each agent serves. rounds: number of finished rounds.

        order: the run's submodels, smallest first.
        """
        super().__init__(archive, say)
        self._link, self._archive = link, archive
        self._trained, self._rounds, self._order = trained, rounds, order
        self.seen = read_published(link, self.run, time.monotonic)

    def follow(self, request: ReleaseRequest) -> dict[str, Any]:
        """Carry out a request. Raises as `release_run` does."""
        if request.status:
            if self.seen.card != (
                releases.build_card(self._archive.read()) if self._archive.read().items else None
            ):
                self._say(
                    "the broker has other releases than the archive shows below: run coordinator "
                    f"release {self.run} to publish them again"
                )
            return self._report(self._collect_reports())
        if request.rollback:
            return self._roll_back(request)
        if request.promote and request.share is None:
            return self._promote_by_command(request.wait, force=request.force)
        self._release(request)
        if request.share is not None:
            self._wait_for_reports(
                self._archive.read().agents, CANARY_WAIT if request.wait is None else request.wait
            )
            if request.promote:
                return self._decide(force=request.force)
            return self._report(self._collect_reports())
        return self._follow_up(request)

    # ---- requests --------------------------------------------------------------------------------

    def _release(self, request: ReleaseRequest) -> None:
        """Release a version to all agents or to a canary; if the run has nothing new, publish the
        current release again.
        """
        if request.share is not None:
            self._draw(request.share, "")  # fail before an export, which may take minutes
        with self._archive.lock():
            old = self._archive.read()
            known = (
                None
                if request.bundle is not None or request.force
                else _find_version(old, self._rounds)
            )
            name = known or self._add(request)
            rolled_back = releases.find_rollback_event(old, name)
            if rolled_back is not None and not request.force:
                why = f"version {name} was rolled back at {rolled_back.time}" + (
                    f": {'; '.join(rolled_back.reasons)}" if rolled_back.reasons else ""
                )
                if not known or request.share is not None:
                    raise ExportError(f"{why}; use --force to release it anyway")
                self._say(f"round {self._rounds} is not released: {why} (override with --force)")
                new = old
            elif known and request.share is None and name in (old.stable, old.canary):
                self._say(
                    f"nothing new: round {self._rounds} is already version {name} "
                    f"({'stable' if name == old.stable else 'canary'}); published it again"
                )
                new = old
            else:
                new = self._add_version(old, name, request)
            self._write(new, {name: request.files_at or ""})

    def _add_version(self, old: ModelHistory, name: str, request: ReleaseRequest) -> ModelHistory:
        version = describe_version(self._archive.check(name), self.run, self._trained)
        past = old.items[name].before if name in old.items else {}
        now = {
            agent: serving
            for agent, serving in self.seen.servings.items()
            if serving.version != name
        }
        item = Item(version, before={**past, **now})
        if version.untrained:
            self._say(
                f"version {name} has submodels that no update of the run trained: "
                f"{', '.join(version.untrained)}"
            )
        if request.share is None:
            self._say(f"releasing version {name} (round {version.round}) to all agents")
            return releases.release(old, item, format_now())
        known, agents = self._draw(request.share, name)
        changed = releases.start_canary(old, item, agents, format_now())
        self._say(
            f"releasing version {name} (round {version.round}) to {len(agents)} of "
            f"{len(known)} agents first: {', '.join(agents)}"
        )
        return changed

    def _draw(self, share: str, version: str) -> tuple[list[str], tuple[str, ...]]:
        """Return the known agents, and those of a canary. Raises as `canary.draw_agents` does."""
        known = sorted(self.seen.servings) or sorted(self._trained)
        return known, canary.draw_agents(share, version, known, self._trained)

    def _roll_back(self, request: ReleaseRequest) -> dict[str, Any]:
        if self._withdraw():
            return self._follow_up(request)
        return self._report(self._collect_reports())

    def _follow_up(self, request: ReleaseRequest) -> dict[str, Any]:
        """Wait for the agents that serve, and tell what they report on the stable version. The
        result has `error` if an agent refuses a rollback, or all that report refuse a release.
        """
        agents = tuple(sorted(self.seen.servings))
        if request.wait:  # also for agents that do not serve yet
            agents = tuple(sorted({*agents, *self._trained}))
        wait = WAIT if request.wait is None else request.wait
        if agents and wait:
            self._wait_for_reports(agents, wait)
        history = self._collect_reports()
        name, result = history.stable, self._report(history)
        heard = canary.select_reports(agents, name, self.seen.servings)
        refused = {agent: one for agent, one in heard.items() if one.version != name}
        if agents and name:
            silent = [agent for agent in agents if agent not in heard]
            self._say(
                f"{len(heard) - len(refused)} of {format_count(len(agents), 'agent')} reported "
                f"that they serve version {name}"
                + (f"; no report on it yet from {', '.join(silent)}" if silent else "")
            )
        if refused and (request.rollback or len(refused) == len(heard)):
            reasons = "; ".join(
                f"{agent} refused it and serves {one.version or 'nothing'}: {one.reason}"
                for agent, one in refused.items()
            )
            result["error"] = f"version {name} is released, but {reasons}"
        return result

    def _judge(self, history: ModelHistory) -> canary.Verdict:
        item, stable = history.items[history.canary], history.stable
        made = release_reader.read_manifest(self._archive.check(history.canary))
        old = (
            (stable, release_reader.read_manifest(self._archive.check(stable))) if stable else None
        )
        verdict = canary.judge(history.canary, history.agents, item.reports, item.before, made, old)
        for note in verdict.notes:
            self._say(note)
        return verdict

    def _get_reports(self) -> Mapping[str, Serving]:
        return self.seen.servings

    def _receive(self, seconds: float) -> None:
        delivery = self._link.receive(seconds)
        if delivery is not None:
            self.seen.hear(delivery)

    def _report(self, history: ModelHistory) -> dict[str, Any]:
        return report(history, self.seen, self._say)

    # ---- steps -----------------------------------------------------------------------------------

    def _add(self, request: ReleaseRequest) -> str:
        """Add the given folder, or an export of the run's last round, to the archive. Return its
        version.
        """
        if request.bundle is not None:
            found = release_reader.read_manifest(request.bundle)
            if found.run != self.run:
                raise ExportError(
                    f"{request.bundle}: expected a release of run '{self.run}', found one "
                    f"of '{found.run}'"
                )
            return self._archive.add(request.bundle)
        partial = self._archive.folder / f"export.{secrets.token_hex(3)}.part"
        self._say(f"exporting round {self._rounds} of run '{self.run}' and comparing with PyTorch")
        try:
            self._export(partial, request.inputs)
            return self._archive.add(partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _export(self, folder: Path, inputs: Path | None) -> None:
        """Export the run's last round into a folder."""
        # imported here, because no other request needs PyTorch, whose import takes seconds
        from coordinator.release.export_run import ExportRequest, write_release

        request = ExportRequest(self.run, self._archive.runs, folder, inputs=inputs)
        with show_progress("exporting and comparing with PyTorch") as show:

            def say_entry(entry: release_reader.Entry, done: int, total: int) -> None:
                show(done, total)
                self._say_exported(entry)

            write_release(request, say_entry)

    def _say_exported(self, entry: release_reader.Entry) -> None:
        kinds = ", ".join(
            f"{variant.kind} {variant.file.size / 1e3:.0f} kB" for variant in entry.variants
        )
        self._say(f"  {entry.label}: {entry.parameters:,} parameters, {kinds}")

    def _write(
        self,
        history: ModelHistory,
        served_at: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Bring the broker to the state of a history: publish its files, then the card, and
        withdraw the versions that are no longer needed.

        served_at: version -> address of its files, see `publish`.
        The history is written between files and card: after an interruption before that, the same
        command can be repeated.
        """
        if not history.items:
            return
        history = self._assign_missing(history)
        wanted, there = releases.list_kept(history), self.seen.manifests
        sent = dict[tuple[str, str], Manifest]()
        for name in wanted:
            folder = self._archive.check(name)
            sent |= publish(self._link, self.run, folder, there, served_at.get(name, ""))
        self._archive.write(history)
        self._archive.prune(history)
        card, self.seen.card = releases.build_card(history), None  # until the broker shows it
        announce(self._link, card)
        withdraw(self._link, self.run, wanted, there)
        self.seen.manifests = {
            key: one for key, one in {**there, **sent}.items() if key[0] in wanted
        }
        if sent:
            self._say(f"published {sum(one.size for one in sent.values()) / 1e6:.2f} MB")
        confirm(self._link, self.seen, card, time.monotonic)

    def _assign_missing(self, history: ModelHistory) -> ModelHistory:
        """Return the history with a submodel for each agent that its current versions lack."""
        items = dict(history.items)
        for name in filter(None, (history.stable, history.canary)):
            items[name], notes = assign_missing(items[name], self._trained, self._order)
            for note in notes:
                self._say(note)
            version = items[name].version
            missing = sorted(set(self._trained) - version.assignment.keys())
            if missing:
                self._say(
                    f"version {name} has no submodel for {', '.join(missing)}; it has "
                    f"{', '.join(version.submodels)}"
                )
        return replace(history, items=items)


def _read_run(runs: Path, run: str) -> tuple[dict[str, str], tuple[str, ...], int]:
    """Return the submodel that each agent should serve, the run's submodels, smallest first, and
    the number of finished rounds. Raises StoreError.
    """
    with closing(open_records(runs, run)) as records:
        try:
            return choose_serving(records), read_order(records), records.rounds_done
        except ValueError as error:
            raise StoreError(f"cannot read run '{run}' in {runs}: {error}") from error


def open_run_link(run: str, broker: str | None, runs: Path) -> Link:
    """Connect to a broker, or else to that of a run. Raises LinkError, which says what else the run
    explains, and ConfigError for a run that does not tell its broker's address.
    """
    with closing(open_records(runs, run)) as records:
        wanted = read_tables(records.read_facts().config).broker
    broker = broker or find_broker(wanted)
    try:
        link = open_link(add_certificate(broker), f"release-{run}-{secrets.token_hex(3)}")
    except LinkError as error:
        hints = []
        if wanted.tls and get_scheme(broker) == "mqtt":
            hints.append(f"run '{run}' uses certificates: use --broker mqtts://HOST")
        if not wanted.url and not run_lock.is_held(runs / run):
            hints.append(
                f"run '{run}' does not run, and the broker that it started ended with it: start "
                "your own (mosquitto), or name the broker of another run in progress (--broker)"
            )
        raise LinkError("; ".join([str(error), *hints])) from error
    limit_link(link, find_profile(wanted.profile))
    return link


def _find_version(history: ModelHistory, number: int) -> str:
    """Return the version of a round that is kept or was rolled back; empty if there is none."""
    made = [name for name, item in history.items.items() if item.version.round == number]
    return next(
        (
            name
            for name in reversed(made)
            if name in releases.list_kept(history) or releases.find_rollback_event(history, name)
        ),
        "",
    )
