"""Apply the configured defences to the rounds of a run: against malicious updates, and against what
updates reveal about devices.

robust.bound   coordinator.trust.norm_bounds          refuses an update before it is folded
robust.rule    federated.engine.robust                aggregates with a rule other than the mean
private.noise  federated.engine.differential_privacy  bounds each device's change, and adds noise to
                                                      the sum
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from coordinator.settings.config import Config
from coordinator.trust import privacy_budget
from coordinator.trust.norm_and_privacy_tables import ChangeNorm, TrustTables
from coordinator.trust.norm_bounds import Bound, check_change, compute_bounds
from federated.engine.aggregate import Key, Total, fold
from federated.engine.differential_privacy import make_private
from federated.engine.robust.catalogue import find_rule
from federated.engine.robust.rule import Rule, combine, make_robust
from federated.engine.update_contributions import Part
from federated.engine.update_norms import clip_parts
from federated.engine.update_part_files import PartStore
from federated.errors import ConfigError, StoreError, explain_os_errors
from federated.method import Method, State
from federated.methods.catalogue import METHODS
from federated.task import Update
from models.submodel import Submodel
from models.submodel_building import statistics

__all__ = ["Defences", "add_defences", "check_buffer_size", "check_leaks"]

log = logging.getLogger(__name__)


def add_defences(method: Method, config: Config) -> Method:
    """Return the method with the configured defences.

    Raises Unknown for an unknown rule, ConfigError for conflicting settings, MissingExtra without
    the accountant of private runs.
    """
    wanted, guard, chosen = config.robust, config.private, find_rule(config.robust.rule)
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
                f"{key}: not supported by method {method.name}: {method.forbids[mode]}; "
                f"supported methods: {able}"
            )
    if wanted.clip and not (chosen and chosen.limits_norm):
        raise ConfigError(
            f"robust.clip = {wanted.clip:g} has no effect with robust.rule = '{wanted.rule}': "
            "choose a rule that clips, such as 'clip'"
        )
    if config.fleet.mode == "buffered" and config.fleet.buffer:
        check_buffer_size(config, config.fleet.buffer, "fleet.buffer")
    if not guard.noise:
        if guard.clip or guard.epsilon or guard.uncovered:
            raise ConfigError(
                "private.clip, private.epsilon and private.uncovered have no effect without "
                "private.noise: set it above 0, or use robust.rule = 'clip' to clip alone"
            )
        return make_robust(method) if chosen else method
    if not guard.clip:
        raise ConfigError(
            "private.noise is a multiple of private.clip, the largest change of one update: "
            "expected private.clip above 0, found 0"
        )
    if chosen:
        raise ConfigError(
            f"robust.rule = '{wanted.rule}' and private.noise cannot be combined: a private "
            "run clips every change itself, and its noise is calibrated for a mean"
        )
    if config.fleet.mode != "sync" or config.fleet.late != "drop":
        raise ConfigError(
            "private.noise: expected fleet.mode = 'sync' and fleet.late = 'drop', because "
            "the privacy cost of late updates is not accounted for"
        )
    return make_private(method, guard.noise, guard.clip)


def check_buffer_size(config: Config, most: int, what: str) -> None:
    """Raise ConfigError if a round can never have the updates that the rule requires, so that
    nothing would be learned. most: updates of a round.
    """
    wanted, chosen = config.robust, find_rule(config.robust.rule)
    if chosen and most < (least := chosen.needed(wanted.byzantine)):
        raise ConfigError(
            f"robust.rule = '{wanted.rule}' requires {least} updates of each {chosen.compares} to "
            f"withstand robust.byzantine = {wanted.byzantine}: "
            f"expected {what} of at least {least}, found {most}"
        )


def check_leaks(config: Config, menu: Sequence[Submodel], *, known: bool) -> None:
    """Raise ConfigError if a private run would reveal something about devices without noise that
    private.uncovered does not allow.

    known: whether the coordinator has its own data to scale inputs with.
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
            "inputs are scaled with the mean and deviation of the devices' data: give the "
            "coordinator its own data",
        ),
        "scores": (
            config.evaluate.devices or config.evaluate.local,
            "devices score their held-out examples: set evaluate.devices = false and "
            "evaluate.local = false",
        ),
        "statistics": (
            measured,
            "the model holds batch norm statistics measured by the fleet: set "
            "method.norm = 'tracked', or evaluate.calibrate = 'coordinator'",
        ),
    }
    for name, (leaks, how) in shown.items():
        if leaks and name not in config.private.uncovered:
            raise ConfigError(
                f"a private run: {how}; or add '{name}' to private.uncovered to release "
                "them without noise"
            )


@dataclass
class Defences:
    """The hooks of a run's rounds.

    config: of the run.
    tables: norms and privacy costs in the run's database.
    folder: for the updates that a rule needs together.
    round: the current round, which late updates of earlier rounds are counted in too.
    pending: norms that are not written yet, by agent, submodel and kind.
    """

    config: Config
    tables: TrustTables
    folder: Path
    round: int
    pending: dict[tuple[str, str, str], ChangeNorm] = field(default_factory=dict)
    _known: tuple[int, Mapping[tuple[str, str], Bound]] = (-1, MappingProxyType({}))

    # ---- before the fold -------------------------------------------------------------------------

    @property
    def measures(self) -> bool:
        """Whether the changes of updates are measured. A private run clips instead, and a norm that
        bounds others would be released without noise.
        """
        return not self.config.private.noise

    def check(self, update: Update, norms: Mapping[str, float]) -> None:
        """Record how far an update moved from the weights that were sent. Raises Refused if it
        moved too far.

        norms: of its changes, by kind; empty unless the run `measures` them.
        """
        name = update.submodel.plain.name
        for kind, norm in norms.items():
            self.pending[update.agent, name, kind] = ChangeNorm(
                self.round, update.agent, name, kind, norm
            )
        if self.config.robust.bound:
            check_change(update, norms, self.bounds)

    @property
    def bounds(self) -> Mapping[tuple[str, str], Bound]:
        """The bounds of the current round, which its own updates do not affect."""
        if self._known[0] != self.round:
            self._known = (
                self.round,
                compute_bounds(
                    self.tables.read_norms(self.round), self.round, self.config.robust.bound or 1.0
                ),
            )
        return self._known[1]

    def write(self) -> None:
        """Write the norms measured so far, for later rounds. Raises StoreError."""
        self.tables.write_norms(self.pending.values())
        self.pending.clear()

    # ---- the fold --------------------------------------------------------------------------------

    @cached_property
    def rule(self) -> Rule | None:
        return find_rule(self.config.robust.rule)

    def begin(self, round: int, submodels: Iterable[Submodel]) -> PartStore | None:
        """Begin a round. Return where to keep its updates if the rule needs them all together, or
        None if they are added up as they arrive.

        A rule that clips needs them together while no norm of a submodel is known yet.
        """
        self.round = round
        if self.rule is None or (
            self.rule.limits_norm and self.common_limit and all(map(self.limit, set(submodels)))
        ):
            return None
        return PartStore(self.folder)

    def limit(self, submodel: Submodel) -> float:
        """Return the norm to which a rule clips a change, over all kinds together; 0 if none is
        known yet.
        """
        limits = [
            bound.limit(self.config.robust.byzantine)
            for (name, _), bound in self.bounds.items()
            if name == submodel.plain.name
        ]
        return self.config.robust.clip or math.hypot(*limits)

    @property
    def common_limit(self) -> float:
        """The norm to which a rule clips changes to a submodel of which no norm is known yet: of a
        late update, or of an agent that replaces another.
        """
        common = {kind: bound.common for (_, kind), bound in self.bounds.items()}
        return self.config.robust.clip or math.hypot(*common.values())

    def fold(
        self,
        total: Total | PartStore,
        state: State,
        submodel: Submodel,
        parts: Iterable[Part],
        key: Key,
    ) -> bool:
        """Fold an update into a round's total. Raises StoreError if there is no room to keep it."""
        if isinstance(total, PartStore):
            problem = f"cannot keep the update of {key[0]} in {self.folder}"
            with explain_os_errors(StoreError, problem):
                return total.fold(parts, key)
        if self.rule and self.rule.limits_norm:
            limit = self.limit(submodel) or self.common_limit
            parts = clip_parts(parts, state.tensors, limit)
        return fold(total, parts, key)

    def combine(self, total: Total | PartStore, state: State) -> Total:
        """Return a round's updates as a total whose mean is the rule's result. Raises
        StoreError.
        """
        if not isinstance(total, PartStore):
            return total
        assert self.rule is not None  # `begin` keeps updates only for a rule
        with explain_os_errors(StoreError, f"cannot read the updates kept in {self.folder}"):
            found = combine(self.rule, total, state.tensors, self.config.robust.byzantine)
            total.clear()
        return found

    # ---- after the fold --------------------------------------------------------------------------

    def release(self, round: int, total: Total) -> None:
        """Record the privacy cost of a private round before anyone sees its result. Raises
        StoreError.
        """
        guard = self.config.private
        if guard.noise and total.sums:
            self.tables.write_costs(round, privacy_budget.compute_costs(total.seen, guard.noise))
            log.info("after round %d epsilon is %.4g at delta %g", round, self.epsilon, guard.delta)

    @property
    def epsilon(self) -> float:
        """Epsilon of the most exposed device after all rounds so far; 0 if the run is not
        private.
        """
        return (
            privacy_budget.compute_epsilon(self.tables.read_costs(), self.config.private.delta)
            if self.config.private.noise
            else 0.0
        )

    @property
    def exhausted(self) -> str:
        """Reason why no further result may be released; empty if one may."""
        guard = self.config.private
        if not guard.noise or not guard.epsilon:
            return ""
        ahead = privacy_budget.compute_epsilon(
            privacy_budget.add_round(self.tables.read_costs(), guard.noise), guard.delta
        )
        return (
            f"another round could raise epsilon to {ahead:.4g}, above private.epsilon = "
            f"{guard.epsilon:g}"
            if ahead > guard.epsilon
            else ""
        )
