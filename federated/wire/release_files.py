"""What is said of releases: which version is for whom, and what each agent answers with."""

from __future__ import annotations

from dataclasses import dataclass, field

from federated.wire.fields import (
    AgentName,
    Digest,
    Name,
    Natural,
    SubmodelName,
    SubmodelOrNone,
    Text,
    VersionName,
    VersionOrNone,
    Word,
)

__all__ = ["UNTRAINED", "Release", "Serving", "Version", "marked"]

UNTRAINED = "not trained"  # the mark of a submodel that no update of its run trained


def marked(submodel: str, *, untrained: bool) -> str:
    """The name of a submodel for a person, with the mark where no update trained it."""
    return f"{submodel} ({UNTRAINED})" if untrained else submodel


@dataclass(frozen=True)
class Version:
    """A released folder of files, told by its manifest: name: the first digits of that file's
    sha256; size: its bytes.

    round: of the run that the networks are of. submodels: that it holds. assignment: which of them
    each agent is to use.
    untrained: those of them that no update of the run trained.
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
    """Retained card of what a run released: stable is for all, canary for these agents first. None:
    there is no such version.
    """

    run: Name
    stable: Version | None = None
    canary: Version | None = None
    agents: tuple[AgentName, ...] = ()


@dataclass(frozen=True)
class Serving:
    """Retained report of an agent that answers. session: of its process.

    version, submodel, variant, provider: what it answers with; empty while it has nothing. p50,
    p90: seconds of one answer, measured on this device as it took the version up. accuracy: on
    `examples` held-out ones of its own; None without. answered, failed: requests since its start.
    p90_before, accuracy_before: the same of the version `before`, measured in the same minute.
    refused: a later version that it did not take up, and goes on without, for this reason.
    """

    agent: AgentName
    session: Name
    version: VersionOrNone = ""
    submodel: SubmodelOrNone = ""
    variant: Word = ""
    provider: Word = ""
    p50: float | None = None
    p90: float | None = None
    accuracy: float | None = None
    examples: Natural = 0
    before: VersionOrNone = ""
    p90_before: float | None = None
    accuracy_before: float | None = None
    answered: Natural = 0
    failed: Natural = 0
    refused: VersionOrNone = ""
    reason: Text = ""
