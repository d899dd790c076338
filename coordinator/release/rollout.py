"""The command `coordinator release`: brings what a run learned to the agents that answer with it;
to some first, to all, or back.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from coordinator.access.gate import shown
from coordinator.release import canary
from coordinator.release import history as releases
from coordinator.release.archive import Archive
from coordinator.release.export_run import ExportRequest, write_release
from coordinator.release.history import History, Item
from coordinator.release.reports import told
from coordinator.store.store import Store
from coordinator.store.training_counts import answering
from export import bundle
from export.publish import Published, announce, confirm, publish, published, version_of, withdraw
from federated.errors import ExportError, StoreError, UsageError
from federated.runtime.console import Say
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link

__all__ = ["CANARY_WAIT", "Rollout", "Wish", "release_run"]

CANARY_WAIT = 60.0  # seconds for the agents of a canary to report
LOOK = 0.2  # seconds between looks at what came


@dataclass(frozen=True)
class Wish:
    """What a person asks of `coordinator release`. wait: seconds, None for what fits; share: of the
    canary, as `canary.drawn` takes it.
    """

    run: str
    broker: str | None = None
    bundle: Path | None = None
    share: str | None = None
    promote: bool = False
    rollback: bool = False
    status: bool = False
    wait: float | None = None
    force: bool = False
    inputs: Path | None = None


def release_run(wish: Wish, runs: Path, say: Say) -> dict[str, Any]:
    """What `coordinator release` does; its result as plain values, `error` why it exits with 8.

    Raises UsageError, Unknown, StoreError, ExportError, FleetError, LinkError.
    """
    _check(wish)
    trained, rounds = _trained(runs, wish.run)
    archive = Archive(runs, wish.run)
    archive.read()  # a damaged one is said before anything happens
    if wish.broker is None:
        return told(archive.read(), Published(servings=releases.latest(archive.read())), say)
    link = open_link(shown(wish.broker), f"release-{wish.run}-{secrets.token_hex(3)}")
    try:
        return Rollout(link, archive, trained, rounds, say).follow(wish)
    finally:
        link.close()


class Rollout:
    """One run's releases at one broker."""

    def __init__(
        self, link: Link, archive: Archive, trained: Mapping[str, str], rounds: int, say: Say
    ) -> None:
        """trained: the submodel that each agent is to answer with; rounds: how many the run has
        finished.
        """
        self._link, self._archive, self._say = link, archive, say
        self._trained, self._rounds = trained, rounds
        self.run = archive.run
        self.seen = published(link, self.run, time.monotonic)

    def follow(self, wish: Wish) -> dict[str, Any]:
        """Does what is asked."""
        if wish.status:
            if self.seen.card != (
                releases.card_of(self._archive.read()) if self._archive.read().items else None
            ):
                self._say(
                    "the broker shows something else than what follows: coordinator "
                    f"release {self.run} publishes it again"
                )
            return told(self._noted(), self.seen, self._say)
        if wish.rollback:
            return self._roll_back()
        if wish.promote and wish.share is None:
            return self._promote(wish.force)
        self._release(wish)
        if wish.share is not None:
            self._await(
                self._archive.read().agents, CANARY_WAIT if wish.wait is None else wish.wait
            )
            if wish.promote:
                return self._decide(wish.force)
        elif wish.wait:
            self._await(tuple(sorted({*self.seen.servings, *self._trained})), wish.wait)
        return told(self._noted(), self.seen, self._say)

    # ---- what is asked ---------------------------------------------------------------------------

    def _release(self, wish: Wish) -> None:
        """A version to all, or to some; where the run has nothing new, what is released already is
        published again.
        """
        if wish.share is not None:
            self._drawn(wish.share, "")  # before an export, which may take minutes
        with self._archive.changing():
            old = self._archive.read()
            known = None if wish.bundle is not None or wish.force else _of_round(old, self._rounds)
            name = known or self._take(wish)
            gone = releases.taken_back(old, name)
            if gone is not None and not wish.force:
                why = f"version {name} was rolled back at {gone.time}" + (
                    f": {'; '.join(gone.reasons)}" if gone.reasons else ""
                )
                if not known or wish.share is not None:
                    raise ExportError(f"{why}; --force releases it all the same")
                self._say(
                    f"round {self._rounds}, {why}: it stays so (--force releases it all the same)"
                )
                new = old
            elif known and wish.share is None and name in (old.stable, old.canary):
                self._say(
                    f"nothing new: round {self._rounds} is version {name}, "
                    f"{'stable' if name == old.stable else 'a canary'}; published again"
                )
                new = old
            else:
                new = self._changed(old, name, wish)
            self._write(new)

    def _changed(self, old: History, name: str, wish: Wish) -> History:
        version = version_of(self._archive.path(name), self.run, self._trained)
        past = old.items[name].before if name in old.items else {}
        now = {
            agent: serving
            for agent, serving in self.seen.servings.items()
            if serving.version != name
        }
        item = Item(version, before={**past, **now})
        missing = sorted(set(self._trained) - version.assignment.keys())
        if missing:
            self._say(
                f"version {name} holds no submodel of {', '.join(missing)}; held: "
                f"{', '.join(version.submodels)}"
            )
        if version.untrained:
            self._say(
                f"version {name} holds submodels that no update of the run trained: "
                f"{', '.join(version.untrained)}"
            )
        if wish.share is None:
            self._say(f"version {name} (round {version.round}) goes to all agents")
            return releases.released(old, item, _now())
        known, agents = self._drawn(wish.share, name)
        self._say(
            f"version {name} (round {version.round}) goes to {len(agents)} of "
            f"{len(known)} agents first: {', '.join(agents)}"
        )
        return releases.canaried(old, item, agents, _now())

    def _drawn(self, share: str, version: str) -> tuple[list[str], tuple[str, ...]]:
        """The agents that are known, and those of a canary. Raises what `canary.drawn` raises."""
        known = sorted(self.seen.servings) or sorted(self._trained)
        return known, canary.drawn(share, version, known, self._trained)

    def _promote(self, force: bool) -> dict[str, Any]:
        history = self._noted()
        releases.promoted(history, "")  # is there one?
        verdict = self._judge(history)
        if not verdict.good and not force:
            listed = "".join(f"\n  - {reason}" for reason in verdict.reasons)
            raise ExportError(
                f"version {history.canary} is not promoted (--force does it all the "
                f"same, --rollback takes it back):{listed}"
            )
        return self._settle(history.canary, verdict, promote=True)

    def _decide(self, force: bool) -> dict[str, Any]:
        """By what its agents reported, a canary goes to all or back."""
        history = self._noted()
        verdict = self._judge(history)
        return self._settle(history.canary, verdict, promote=verdict.good or force)

    def _roll_back(self) -> dict[str, Any]:
        with self._archive.changing():
            history = releases.reported(self._archive.read(), self.seen.servings)
            gone, then = releases.roll_target(history)
            self._write(releases.rolled_back(history, _now(), ("by command",)))
        self._say(f"version {gone} is taken back; agents go on with {then or 'what they had'}")
        return told(self._archive.read(), self.seen, self._say)

    def _settle(self, name: str, verdict: canary.Verdict, *, promote: bool) -> dict[str, Any]:
        with self._archive.changing():
            history = self._archive.read()
            if history.canary != name:
                raise ExportError(
                    f"version {name} is no canary any more: another command changed "
                    "what is released"
                )
            change = releases.promoted if promote else releases.rolled_back
            self._write(change(history, _now(), verdict.reasons))
        self._say(
            f"version {name} is {'promoted: it goes to all agents' if promote else 'rolled back'}"
        )
        for reason in verdict.reasons if promote else ():
            self._say(f"in spite of this: {reason}")
        result = told(self._archive.read(), self.seen, self._say)
        result["verdict"] = msgspec.to_builtins(verdict)
        return (
            result
            if promote
            else {
                **result,
                "error": f"version {name} was rolled back: {'; '.join(verdict.reasons)}",
            }
        )

    def _judge(self, history: History) -> canary.Verdict:
        item, stable = history.items[history.canary], history.stable
        made = bundle.manifest(self._archive.path(history.canary))
        old = (stable, bundle.manifest(self._archive.path(stable))) if stable else None
        verdict = canary.judged(
            history.canary, history.agents, item.reports, item.before, made, old
        )
        for note in verdict.notes:
            self._say(note)
        return verdict

    # ---- what is done ----------------------------------------------------------------------------

    def _take(self, wish: Wish) -> str:
        """Puts the release that is meant into the archive: a folder, or the run's last round,
        exported. Its version.
        """
        if wish.bundle is not None:
            found = bundle.manifest(wish.bundle)
            if found.run != self.run:
                raise ExportError(
                    f"{wish.bundle}: expected a release of run '{self.run}', found one "
                    f"of '{found.run}'"
                )
            return self._archive.take(wish.bundle)
        partial = self._archive.folder / f"export.{secrets.token_hex(3)}.part"
        self._say(f"exporting round {self._rounds} of run '{self.run}', compared with PyTorch")
        try:
            request = ExportRequest(self.run, self._archive.runs, partial, inputs=wish.inputs)
            write_release(request, self._exported)
            return self._archive.take(partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _exported(self, entry: bundle.Entry) -> None:
        kinds = ", ".join(
            f"{variant.kind} {variant.file.size / 1e3:.0f} kB" for variant in entry.variants
        )
        self._say(f"  {entry.label}: {entry.parameters:,} parameters, {kinds}")

    def _write(self, history: History) -> None:
        """Brings the broker to a history: its files, then the card; what nobody wants any more
        goes.

        The history is written between the two: who interrupts this before may ask for the same once
        more.
        """
        if not history.items:
            return
        wanted, there = releases.kept(history), self.seen.manifests
        sent = {
            key: one
            for name in wanted
            for key, one in publish(self._link, self.run, self._archive.path(name), there).items()
        }
        self._archive.write(history)
        self._archive.prune(history)
        card, self.seen.card = releases.card_of(history), None  # until the broker shows it
        announce(self._link, card)
        withdraw(self._link, self.run, wanted, there)
        self.seen.manifests = {
            key: one for key, one in {**there, **sent}.items() if key[0] in wanted
        }
        if sent:
            self._say(f"published {sum(one.size for one in sent.values()) / 1e6:.2f} MB")
        confirm(self._link, self.seen, card, time.monotonic)

    def _await(self, agents: tuple[str, ...], seconds: float) -> None:
        """Hears agents until all have said something of the newest version, or time is up."""
        history = self._archive.read()
        name, until = history.canary or history.stable, time.monotonic() + seconds
        self._say(f"waiting up to {seconds:g} s for {', '.join(agents) or 'agents'}")
        while (
            len(canary.said(agents, name, self.seen.servings)) < len(agents)
            and time.monotonic() < until
        ):
            delivery = self._link.receive(LOOK)
            if delivery is not None:
                self.seen.hear(delivery)

    def _noted(self) -> History:
        """The history with what agents say by now, written."""
        with self._archive.changing():
            history = releases.reported(self._archive.read(), self.seen.servings)
            if history.items:
                self._archive.write(history)
        return history


def _check(wish: Wish) -> None:
    """Raises UsageError for flags that contradict each other."""
    making = wish.bundle is not None or wish.share is not None or wish.inputs is not None
    if (wish.rollback and (making or wish.promote)) or (
        wish.status and (making or wish.promote or wish.rollback)
    ):
        raise UsageError("--rollback and --status stand alone: the others release something")
    if wish.promote and wish.share is None and making:
        raise UsageError(
            "--promote promotes the canary that is on; with --canary, it tries a new "
            "version and decides at once"
        )
    if wish.bundle is not None and wish.inputs is not None:
        raise UsageError(
            "--inputs is for exporting the run's last round: --bundle is exported already"
        )
    if wish.broker is None and not wish.status:
        raise UsageError(
            "--broker is missing: name the broker that agents hear, such as --broker "
            "192.168.1.5 (--status goes without)"
        )
    if wish.wait is not None and not 0 <= wish.wait < float("inf"):
        raise UsageError(f"--wait: expected seconds, found {wish.wait:g}")


def _trained(runs: Path, run: str) -> tuple[dict[str, str], int]:
    """Which submodel each agent is to answer with, and how many rounds were finished. Raises
    StoreError.
    """
    store = Store.open(runs, run, read_only=True)
    try:
        return answering(store), store.rounds_done
    except ValueError as error:
        raise StoreError(f"run '{run}' in {runs} cannot be read: {error}") from error
    finally:
        store.close()


def _of_round(history: History, number: int) -> str:
    """The version of this round that is here, or was rolled back; empty where there is none."""
    made = [name for name, item in history.items.items() if item.version.round == number]
    return next(
        (
            name
            for name in reversed(made)
            if name in releases.kept(history) or releases.taken_back(history, name)
        ),
        "",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
