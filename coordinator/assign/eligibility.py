"""Who may take part in a run: devices whose data and runtime fit, and that the configuration
selects.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.assign import constraints
from coordinator.assign.data_cards import AGENTS, misfit, strange
from coordinator.settings.config import Config
from federated.errors import brief
from federated.method import Method
from federated.task import Profile
from models.submodel import Network

__all__ = ["Eligibility", "unable"]


@dataclass(frozen=True)
class Eligibility:
    """Judges devices by their profiles. network: None until it is known, and then nobody is
    refused.
    """

    config: Config
    method: Method
    network: Network | None = None

    def refusal(self, profile: Profile) -> str:
        """Why a device cannot take part; empty where it can."""
        if self.network is None:
            return ""
        why = (
            misfit(profile.data, self.network)
            or unable(profile, self.method)
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


def unable(profile: Profile, method: Method) -> str:
    """Why a device cannot train by a method; empty where it can."""
    if method.hooks is None or not method.hooks.train or profile.runtime.startswith("torch"):
        return ""
    return (
        f"method {method.name} trains with PyTorch alone, and this device has {profile.runtime}: "
        "pip install 'espalier[train]'"
    )


def lacking(profile: Profile, codec: str) -> str:
    """Why a device cannot encode updates by a codec; empty if it can."""
    if codec in profile.codecs:
        return ""
    return (
        f"this run's updates are encoded by the codec '{codec}', and this device has "
        f"{', '.join(profile.codecs) or 'none'}: install the version or package that has it"
    )
