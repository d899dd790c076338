"""What a run does against updates that lie, and against what updates tell: from the configuration
to the hooks of a round.

robust.bound   coordinator.trust.bounds    refuses an update before it is folded
robust.rule    federated.engine.robust      combines updates in another way than by the mean
private.noise  federated.engine.private     bounds what each device adds, and covers the sum
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from coordinator.settings.config import Config
from coordinator.trust import privacy_budget
from coordinator.trust.bounds import Bound, bounds, check_change, moved
from coordinator.trust.norm_tables import Evidence, Measured
from federated.engine.aggregate import Key, Part, Total, fold
from federated.engine.kept_parts import Kept
from federated.engine.private import private
from federated.engine.robust.catalogue import rule
from federated.engine.robust.rule import Rule, combine, robust
from federated.engine.update_norms import clipped
from federated.errors import ConfigError, StoreError
from federated.method import Method, State
from federated.methods.catalogue import METHODS
from federated.task import Update
from models.families.catalogue import statistics
from models.submodel import Submodel

__all__ = ["Defences", "check_covered", "check_enough", "defended"]

log = logging.getLogger(__name__)


def defended(method: Method, config: Config) -> Method:
    """The method with the defences that the configuration asks for.

    Raises Unknown for a rule that does not exist, ConfigError for settings that exclude each other,
    MissingExtra without the accountant of private runs.
    """
    wanted, guard, chosen = config.robust, config.private, rule(config.robust.rule)
    for mode, asked in (("robust", chosen is not None), ("private", bool(guard.noise))):
        if asked and mode in method.forbids:
            able = ", ".join(
                sorted(name for name, made in METHODS.items() if mode in made().allows)
            )
            key = (
                f"robust.rule = '{wanted.rule}'"
                if mode == "robust"
                else f"private.noise = {guard.noise:g}"
            )
            raise ConfigError(
                f"{key}: not with method {method.name}: {method.forbids[mode]}; methods "
                f"that stand it: {able}"
            )
    if wanted.clip and not (chosen and chosen.clips):
        raise ConfigError(
            f"robust.clip = {wanted.clip:g} has no effect with robust.rule = '{wanted.rule}': "
            "expected a rule that clips, such as 'clip'"
        )
    if config.fleet.mode == "buffered" and config.fleet.buffer:
        check_enough(config, config.fleet.buffer, "fleet.buffer")
    if not guard.noise:
        if guard.clip or guard.epsilon or guard.uncovered:
            raise ConfigError(
                "private: expected private.noise above 0, without which nothing is "
                "private; robust.rule = 'clip' shortens alone"
            )
        return robust(method) if chosen else method
    if not guard.clip:
        raise ConfigError(
            "private.noise is told in multiples of private.clip, the longest change of "
            "one update: expected that above 0, found 0"
        )
    if chosen:
        raise ConfigError(
            f"robust.rule = '{wanted.rule}' and private.noise: expected one of them; a "
            "private run shortens every change, and its noise is for a mean"
        )
    if config.fleet.mode != "sync" or config.fleet.late != "drop":
        raise ConfigError(
            "private.noise: expected fleet.mode = 'sync' and fleet.late = 'drop': what "
            "a late update tells is not accounted for"
        )
    return private(method, guard.noise, guard.clip)


def check_enough(config: Config, most: int, what: str) -> None:
    """ConfigError if a round never has the updates that the rule needs, so that nothing would be
    learned. most: updates of a round.
    """
    wanted, chosen = config.robust, rule(config.robust.rule)
    if chosen and most < (least := chosen.needed(wanted.byzantine)):
        raise ConfigError(
            f"robust.rule = '{wanted.rule}' needs {least} updates of each {chosen.compares} to "
            f"withstand robust.byzantine = {wanted.byzantine}: "
            f"expected {what} of at least {least}, found {most}"
        )


def check_covered(config: Config, menu: Sequence[Submodel], *, known: bool) -> None:
    """ConfigError where a private run would show others something of devices without noise, and was
    not told that it may.

    known: whether the coordinator has data of its own, by which inputs are scaled.
    """
    if not config.private.noise:
        return
    measured = (
        config.settings["norm"] == "static"
        and config.evaluate.calibrate != "coordinator"
        and any(map(statistics, menu))
    )
    shown = {
        "moments": (
            not known,
            "inputs are scaled by the mean and deviation of data at the devices: name "
            "data at the coordinator (--data)",
        ),
        "scores": (
            config.evaluate.devices or config.evaluate.local,
            "devices score what they hold out: set evaluate.devices = false and "
            "evaluate.local = false",
        ),
        "statistics": (
            measured,
            "batch norm statistics that the fleet measures are in the model: set "
            "method.norm = 'tracked', or evaluate.calibrate = 'coordinator'",
        ),
    }
    for name, (leaks, how) in shown.items():
        if leaks and name not in config.private.uncovered:
            raise ConfigError(
                f"a private run: {how}; or add '{name}' to private.uncovered, and that "
                "goes without noise"
            )


@dataclass
class Defences:
    """The hooks of a run's rounds.

    folder: for updates that a rule keeps. round: the present one, which late updates of earlier
    ones come into too.
    pending: norms that are not written down yet.
    """

    config: Config
    evidence: Evidence
    folder: Path
    round: int
    pending: dict[tuple[str, str, str], Measured] = field(default_factory=dict)
    _known: tuple[int, Mapping[tuple[str, str], Bound]] = (-1, MappingProxyType({}))

    # ---- before the fold -------------------------------------------------------------------------

    def check(self, update: Update, sent: Mapping[str, Tensor]) -> None:
        """Measures how far an update moved from what was sent. Raises Refused for one that moved
        too far.
        """
        # shortens what is too long; and a norm that bounds others is told without noise
        if self.config.private.noise:
            return
        norms = moved(update, sent)
        name = update.submodel.plain.name
        for kind, norm in norms.items():
            self.pending[update.agent, name, kind] = Measured(
                self.round, update.agent, name, kind, norm
            )
        if self.config.robust.bound:
            check_change(update, norms, self.bounds)

    @property
    def bounds(self) -> Mapping[tuple[str, str], Bound]:
        """Those of the present round, which no update of it moves."""
        if self._known[0] != self.round:
            self._known = (
                self.round,
                bounds(
                    self.evidence.measured(self.round), self.round, self.config.robust.bound or 1.0
                ),
            )
        return self._known[1]

    def write(self) -> None:
        """Keeps the norms measured so far, for later rounds. Raises StoreError."""
        self.evidence.keep(self.pending.values())
        self.pending.clear()

    # ---- the fold --------------------------------------------------------------------------------

    @cached_property
    def rule(self) -> Rule | None:
        return rule(self.config.robust.rule)

    def begin(self, round: int, submodels: Iterable[Submodel]) -> Kept | None:
        """Where to keep a round's updates, if the rule needs all of them together; None if they are
        added up as they come.

        A rule that clips needs all of them while no norm of a submodel is known yet.
        """
        self.round = round
        if self.rule is None or (self.rule.clips and all(map(self.limit, set(submodels)))):
            return None
        return Kept(self.folder)

    def limit(self, submodel: Submodel) -> float:
        """The norm to which a rule that clips shortens a change, of all kinds together; 0 if none
        is known yet.
        """
        medians = [
            bound.median for (name, _), bound in self.bounds.items() if name == submodel.plain.name
        ]
        return self.config.robust.clip or math.hypot(*medians)

    def fold(
        self, total: Total | Kept, state: State, submodel: Submodel, parts: Iterable[Part], key: Key
    ) -> bool:
        """Adds an update to what a round collects. Raises StoreError where there is no room to keep
        it.
        """
        if isinstance(total, Kept):
            try:
                return total.fold(parts, key)
            except OSError as error:
                raise StoreError(
                    f"the update of {key[0]} could not be kept in {self.folder}: {error.strerror}"
                ) from error
        if self.rule and self.rule.clips and (limit := self.limit(submodel)):
            parts = clipped(parts, state.tensors, limit)
        return fold(total, parts, key)

    def settled(self, total: Total | Kept, state: State) -> Total:
        """What a round collected, as a total of which the mean is the rule's result. Raises
        StoreError.
        """
        if not isinstance(total, Kept):
            return total
        assert self.rule is not None  # `begin` keeps updates only for a rule
        try:
            found = combine(self.rule, total, state.tensors, self.config.robust.byzantine)
            total.clear()
        except OSError as error:
            raise StoreError(
                f"updates that were kept in {self.folder} could not be read: {error.strerror}"
            ) from error
        return found

    # ---- after it --------------------------------------------------------------------------------

    def release(self, round: int, total: Total) -> None:
        """Accounts for what a private round tells, before anyone sees its result. Raises
        StoreError.
        """
        guard = self.config.private
        if guard.noise and total.sums:
            self.evidence.release(round, privacy_budget.costs(total.seen, guard.noise))
            log.info("after round %d epsilon is %.4g at delta %g", round, self.epsilon, guard.delta)

    @property
    def epsilon(self) -> float:
        """What all rounds so far have told of the device of which they told most; 0 where the run
        is not private.
        """
        return (
            privacy_budget.epsilon(self.evidence.spent(), self.config.private.delta)
            if self.config.private.noise
            else 0.0
        )

    @property
    def exhausted(self) -> str:
        """Why no further round may be shown to anyone; empty where one may."""
        guard = self.config.private
        if not guard.noise or not guard.epsilon:
            return ""
        ahead = privacy_budget.epsilon(
            privacy_budget.more(self.evidence.spent(), guard.noise), guard.delta
        )
        return (
            f"another round could bring epsilon to {ahead:.4g}, and private.epsilon is "
            f"{guard.epsilon:g}"
            if ahead > guard.epsilon
            else ""
        )
