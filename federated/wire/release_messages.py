"""Messages about released models, and about the wanted software of agents: the version that each
agent is to have, and the reports of agents about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from federated.wire.field_types import (
    AgentName,
    Amount,
    Digest,
    Name,
    Natural,
    ProgramVersion,
    Score,
    SoftwareOrNone,
    SubmodelName,
    SubmodelOrNone,
    Text,
    VersionName,
    VersionOrNone,
    Word,
)

__all__ = [
    "UNTRAINED",
    "Installed",
    "Release",
    "Serving",
    "Software",
    "SoftwareCard",
    "Version",
    "find_wanted",
    "label_submodel",
]

UNTRAINED = "not trained"  # label of a submodel that no update of its run trained


def label_submodel(submodel: str, *, untrained: bool) -> str:
    """Return the display name of a submodel."""
    return f"{submodel} ({UNTRAINED})" if untrained else submodel


@dataclass(frozen=True)
class Version:
    """A released folder of files, identified by its manifest file.

    name: the first 12 digits of `sha256`.
    round: round of the run that trained the networks.
    sha256: digest of the manifest file, hexadecimal.
    size: bytes of the manifest file.
    submodels: submodels in the folder.
    assignment: the submodel of each agent.
    untrained: submodels that no update of the run trained.
    """

    name: VersionName
    round: Natural
    sha256: Digest
    size: Natural
    submodels: tuple[SubmodelName, ...]
    assignment: dict[AgentName, SubmodelName] = field(default_factory=dict)
    untrained: tuple[SubmodelName, ...] = ()


@dataclass(frozen=True)
class Release:
    """Retained card of the released versions of a run.

    run: name of the run.
    stable: for all agents; None: no version.
    canary: for `agents` only; None: no version.
    agents: names of the agents that try the canary.
    """

    run: Name
    stable: Version | None = None
    canary: Version | None = None
    agents: tuple[AgentName, ...] = ()


@dataclass(frozen=True)
class Serving:
    """Retained report of a serving agent.

    agent: its name.
    session: identifies its process.
    version: installed version; empty before the first, as are the next three fields.
    submodel: submodel in use.
    variant: variant of the exported files in use, such as `int8`.
    provider: execution provider of ONNX Runtime in use.
    p50: median seconds per request, measured on the device when it installed the version.
    p90: 90th percentile of the same times.
    accuracy: on `examples` held-out examples of its own; None without examples.
    examples: number of these held-out examples.
    before: the previous version.
    p90_before: p90 of the previous version, measured in the same minute.
    accuracy_before: accuracy of the previous version, measured in the same minute.
    answered: number of requests answered since the process started.
    failed: number of requests failed since the process started.
    refused: a later version that the agent rejected.
    reason: why it rejected that version.
    """

    agent: AgentName
    session: Name
    version: VersionOrNone = ""
    submodel: SubmodelOrNone = ""
    variant: Word = ""
    provider: Word = ""
    p50: Amount | None = None
    p90: Amount | None = None
    accuracy: Score | None = None
    examples: Natural = 0
    before: VersionOrNone = ""
    p90_before: Amount | None = None
    accuracy_before: Score | None = None
    answered: Natural = 0
    failed: Natural = 0
    refused: VersionOrNone = ""
    reason: Text = ""


@dataclass(frozen=True)
class Software:
    """A version of the agents' program.

    release: number of the version.
    sha256: digest of its wheel, hexadecimal.
    round: number of the run's finished rounds when it was ordered.
    agents: those that are to install it; empty: all.
    """

    release: ProgramVersion
    sha256: Digest
    round: Natural = 0
    agents: tuple[AgentName, ...] = ()

    @property
    def name(self) -> str:
        """Name of the environment that it is installed in."""
        return f"{self.release}-{self.sha256[:8]}"


@dataclass(frozen=True)
class SoftwareCard:
    """Retained card of the software that a run wants on its agents' devices.

    run: name of the run.
    stable: for all agents, or for those that it names; nil: none.
    canary: for `agents` only; nil: none.
    agents: names of the agents that try the canary.
    withdrawn: name of the version that was rolled back last; a device that has it goes back.
    """

    run: Name
    stable: Software | None = None
    canary: Software | None = None
    agents: tuple[AgentName, ...] = ()
    withdrawn: SoftwareOrNone = ""


@dataclass(frozen=True)
class Installed:
    """Retained report of a device that follows the wanted version, which its owner decides
    (`edge-agent update --wanted`).

    agent: its name.
    version: name of the wanted or withdrawn version that it has installed; empty: another one.
    release: number of the version that it has installed.
    refused: name of a version that it did not install, or left again.
    reason: why.
    """

    agent: AgentName
    version: SoftwareOrNone = ""
    release: Text = ""
    refused: SoftwareOrNone = ""
    reason: Text = ""


def find_wanted(card: SoftwareCard, agent: str) -> Software | None:
    """Return the version that a card wants on an agent's device."""
    if card.canary is not None and agent in card.agents:
        return card.canary
    stable = card.stable
    return stable if stable is not None and (not stable.agents or agent in stable.agents) else None
