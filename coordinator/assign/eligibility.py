"""Decide which devices may take part in a run, by their data, runtime and the configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from coordinator.assign import agent_filter
from coordinator.assign.majority_network import explain_unit_mismatch
from coordinator.settings.config import Config
from coordinator.settings.config_tables import AGENTS
from coordinator.settings.service_tables import Http
from federated.data.dataset import explain_misfit
from federated.methods.catalogue import METHODS
from federated.safe_text import make_safe
from federated.task import Profile
from federated.trainer_capabilities import GRAPHS, describe_missing, name_hook
from federated.wire.codecs.catalogue import CODECS
from federated.wire.envelope import ADDRESSES, CHANGES
from models.submodel import Network

__all__ = ["Eligibility", "explain_lacking_capabilities"]

OWN_AGENT = "With edge-agent"
HOOKS = "Training graphs cannot replace this hook. "
OTHER_CLIENT = "Another client must support it, and list it in its profile"


@dataclass(frozen=True)
class Eligibility:
    """Checks of device profiles against a run.

    config: of the run.
    network: of the run; None until it is known, which refuses no device.
    needed: capabilities that the run's recipes require of a trainer.
    exported: those of them that a trainer of graphs has by the graphs.
    gateways: returns why the run cannot use gateways; empty if it can.
    groups: of devices; None if no authority keeps them.
    """

    config: Config
    network: Network | None = None
    needed: frozenset[str] = frozenset()
    exported: frozenset[str] = frozenset()
    gateways: Callable[[], str] = lambda: ""
    groups: agent_filter.Groups | None = None

    def explain_refusal(self, profile: Profile) -> str:
        """Return why a device cannot take part; empty if it can."""
        if self.network is None:
            return ""
        needed = self.needed
        if GRAPHS in profile.capabilities:
            needed -= self.exported
        why = (
            explain_misfit(profile.data, self.network)
            or explain_lacking_capabilities(profile, needed, self.config.method_name)
            or explain_lacking_codec(profile, self.config.wire.codec)
            or explain_older_codec(profile, self.config.wire.codec)
            or (self._explain_gateway() if profile.devices else "")
            or explain_lacking_addresses(profile, self.config.http)
        )
        if not why and self.config.data.name == AGENTS:
            why = explain_unit_mismatch(profile.data, self.network)
        return make_safe(why)

    def _explain_gateway(self) -> str:
        """Return why a gateway cannot take part; empty if it can."""
        why = self.gateways()
        return f"this run cannot use gateways: {why}; join with its devices instead" if why else ""

    def explain_exclusion(self, profile: Profile) -> str:
        """Return why `fleet.select` excludes a device; empty if it does not. Raises ConfigError,
        and StoreError if the groups of devices cannot be read.
        """
        if not self.config.fleet.select:
            return ""
        return make_safe(agent_filter.parse(self.config.fleet.select, self.groups)(profile))


def explain_lacking_capabilities(profile: Profile, needed: Collection[str], method: str) -> str:
    """Return why a device's trainer cannot follow the recipes of a run; empty if it can. A client
    that is not edge-agent (docs/protocol.md) gets the same text.

    method: its name in the configuration.
    """
    if not (absent := describe_missing(needed, profile.capabilities)):
        return ""
    by_graphs = GRAPHS in profile.capabilities and name_hook("") in absent
    remedies = []
    if not profile.runtime.startswith("torch "):
        remedies.append("install its extra 'train', and join with --trainer pytorch")
    if ":" in method:
        remedies.append(f"join with --method {method} if you trust that code")
    elif method.lower() not in METHODS:
        remedies.append(f"install the package that adds the method '{method}'")
    return (
        f"this run requires {absent}, which this device's profile does not list under "
        f"capabilities (trainer: {profile.runtime}). {HOOKS if by_graphs else ''}{OWN_AGENT}: "
        f"{' and '.join(remedies) or 'install the version of the coordinator'}. {OTHER_CLIENT}"
    )


def explain_lacking_codec(profile: Profile, codec: str) -> str:
    """Return why a device cannot encode updates with a codec; empty if it can."""
    if codec in profile.codecs:
        return ""
    known = CODECS.get(codec)
    if ":" in codec:
        remedy = f"join with --codec {codec} if you trust that code"
    elif known and known.compression:
        remedy = f"install its extra '{known.compression.extra}'"
    else:
        remedy = "install the version or package that provides it"
    return (
        f"this run encodes updates with the codec '{codec}', which this device lacks (available: "
        f"{', '.join(profile.codecs) or 'none'}). {OWN_AGENT}: {remedy}. {OTHER_CLIENT}"
    )


def explain_older_codec(profile: Profile, codec: str) -> str:
    """Return why an agent of an older protocol must not use a codec; empty if it may: it would
    encode a variate as if it were weights.
    """
    known = CODECS.get(codec)
    if known is None or not known.changes or profile.protocol >= CHANGES:
        return ""
    return (
        f"this run encodes updates with the codec '{codec}', whose meaning changed with protocol "
        f"{CHANGES}, and this device speaks {profile.protocol}: upgrade it"
    )


def explain_lacking_addresses(profile: Profile, http: Http) -> str:
    """Return why an agent of an older protocol cannot transfer over HTTP; empty if it can, or if
    the run does not.
    """
    if not (http.listen or http.store) or profile.protocol >= ADDRESSES:
        return ""
    return (
        f"this run transfers over HTTP, which needs protocol {ADDRESSES}, and this device speaks "
        f"{profile.protocol}: upgrade its edge-agent. {OTHER_CLIENT}"
    )
