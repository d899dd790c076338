"""The options of `coordinator upgrade`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from coordinator.release import canary
from federated.errors import UsageError
from federated.wire.release_messages import Software

__all__ = ["UpgradeRequest", "check_flags", "describe_request", "make_software"]


@dataclass(frozen=True)
class UpgradeRequest:
    """The options of `coordinator upgrade`.

    run: name of the stored run.
    version: of the agents' program; None: none is ordered.
    sha256: digest of its wheel, hexadecimal.
    broker: address; None: that of the run.
    labels: of the agents that are to install it; empty: all.
    groups: of these agents, which the coordinator keeps; empty: any.
    share: agents of the canary, as `canary.draw_agents` takes it; None: all agents.
    promote: whether to promote the canary.
    rollback: whether to roll back.
    status: whether to report only.
    wait: seconds to wait for devices; None: the default.
    force: whether to order or promote despite reasons against it.
    """

    run: str
    version: str | None = None
    sha256: str | None = None
    broker: str | None = None
    labels: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    share: str | None = None
    promote: bool = False
    rollback: bool = False
    status: bool = False
    wait: float | None = None
    force: bool = False


def check_flags(request: UpgradeRequest) -> None:
    """Raise UsageError for flags that cannot be combined, and for invalid values."""
    if (request.version is None) != (request.sha256 is None):
        raise UsageError(
            "expected VERSION and --sha256, the digest of its wheel (sha256sum FILE), together"
        )
    limited = request.labels or request.groups
    if request.version is None and (request.share is not None or limited):
        raise UsageError(
            "--canary, --label and --group: expected the VERSION that the agents are to get"
        )
    if request.version is not None:
        make_software(request, 0, ())
    if request.share is not None:
        canary.split_names(request.share)
    ordering = request.version is not None or request.promote
    if (request.rollback and ordering) or (request.status and (ordering or request.rollback)):
        raise UsageError(
            "--rollback and --status cannot be combined with options that order or promote a "
            "version"
        )
    if request.promote and request.version is not None and request.share is None:
        raise UsageError("--promote with a VERSION: expected --canary, too")
    if request.wait is not None and not 0 <= request.wait < float("inf"):
        raise UsageError(f"--wait: expected at least 0 seconds, found {request.wait:g}")


def make_software(request: UpgradeRequest, round: int, agents: tuple[str, ...]) -> Software:
    """Return the ordered version. Raises UsageError for an invalid number or digest."""
    made = Software(request.version or "", (request.sha256 or "").lower(), round, agents)
    try:
        return msgspec.convert(msgspec.to_builtins(made), Software)
    except msgspec.ValidationError:
        raise UsageError(
            "expected a VERSION such as 0.3.0 and a --sha256 of 64 hexadecimal digits, found "
            f"'{made.release[:80]}' and '{made.sha256[:80]}'"
        ) from None


def describe_request(request: UpgradeRequest) -> tuple[str, str]:
    """Return the command and its options for the audit log."""
    if request.rollback:
        return "roll back agents", ""
    named = [f"version {request.version}", request.sha256] if request.version else []
    flags = [f"label {label}" for label in request.labels]
    flags += [f"group {group}" for group in request.groups]
    flags += [f"canary {request.share}"] if request.share is not None else []
    flags += [name for name in ("promote", "force") if getattr(request, name)]
    return "upgrade agents", ", ".join([*filter(None, named), *flags])
