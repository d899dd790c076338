"""Select the agents that an ordered version is for: by the labels that devices state, and by the
groups that the coordinator keeps.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.access.configured_authority import find_members
from coordinator.settings.service_tables import Broker
from coordinator.upgrade.upgrade_request import UpgradeRequest
from federated.errors import ConfigError, FleetError
from federated.task import Profile

__all__ = ["select_agents"]


def select_agents(
    profiles: Mapping[str, Profile], request: UpgradeRequest, broker: Broker
) -> tuple[str, ...]:
    """Return the agents of a run with all labels and in all groups that a request names. Raises
    FleetError if there is none, and ConfigError or as `find_members` if groups cannot be read.

    broker: settings of the run, which name the authority that keeps the groups.
    """
    if request.groups and not broker.tls:
        raise ConfigError(
            "--group: the certificate authority keeps the groups, and this run has none: use "
            "--label, or start runs with --tls"
        )
    members = [find_members(broker, group) for group in request.groups]
    found = [
        agent
        for agent, one in profiles.items()
        if set(request.labels) <= set(one.labels) and all(agent in group for group in members)
    ]
    if (request.labels or request.groups) and not found:
        named = [f"label {label}" for label in request.labels]
        named += [f"group {group}" for group in request.groups]
        raise FleetError(f"no agent of the run has {' and '.join(named)}")
    return tuple(sorted(found))
