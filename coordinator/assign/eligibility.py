"""Who may take part in a run: devices whose data and runtime fit, and that the configuration
selects.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from coordinator.assign import constraints
from coordinator.assign.data_cards import AGENTS, misfit, strange
from coordinator.settings.config import Config
from federated.capabilities import missing
from federated.errors import brief
from federated.methods.catalogue import METHODS
from federated.task import Profile
from models.submodel import Network

__all__ = ["Eligibility", "unable"]


@dataclass(frozen=True)
class Eligibility:
    """Judges devices by their profiles.

    config: of the run.
    network: None until it is known, and then nobody is refused.
    needed: the capabilities that the recipes of the run require of a trainer.
    """

    config: Config
    network: Network | None = None
    needed: frozenset[str] = frozenset()

    def refusal(self, profile: Profile) -> str:
        """Why a device cannot take part; empty where it can."""
        if self.network is None:
            return ""
        why = (
            misfit(profile.data, self.network)
            or unable(profile, self.needed, self.config.method_name)
            or lacking(profile, self.config.wire.codec)
        )
        if not why and self.config.data.name == AGENTS:
            why = strange(profile.data, self.network)
        return brief(why)

    def exclusion(self, profile: Profile) -> str:
        """Why the configuration does not select a device that could take part; empty where it does.
        Raises ConfigError.
        """
        if not self.config.fleet.select:
            return ""
        return brief(constraints.unmet(constraints.parse(self.config.fleet.select), profile))


def unable(profile: Profile, needed: Collection[str], method: str) -> str:
    """Why a device's trainer cannot follow the recipes of a run; empty if it can. method: its name
    in the configuration.
    """
    if not (absent := missing(needed, profile.capabilities)):
        return ""
    own = f", and with --method {method} if you trust that code of yours" if ":" in method else ""
    return (
        f"this run requires {absent}, which the device's trainer ({profile.runtime}) lacks: join "
        f"with --trainer pytorch (pip install 'espalier[train]'){own or packaged(method)}"
    )


def packaged(method: str) -> str:
    """What a device needs besides for a method of an installed package; empty for built-in ones."""
    if method.lower() in METHODS:
        return ""
    return f", and install the package that adds the method '{method}'"


def lacking(profile: Profile, codec: str) -> str:
    """Why a device cannot encode updates by a codec; empty if it can."""
    if codec in profile.codecs:
        return ""
    remedy = (
        f"join with --codec {codec} if you trust that code of yours"
        if ":" in codec
        else "install the version or package that has it"
    )
    return (
        f"this run encodes updates with the codec '{codec}', which this device lacks (it has "
        f"{', '.join(profile.codecs) or 'none'}): {remedy}"
    )
