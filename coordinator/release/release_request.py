"""The options of `coordinator release`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator.audit_log import Actor
from coordinator.release import canary
from federated.errors import UsageError

__all__ = ["ReleaseRequest", "check_flags", "describe_request"]


@dataclass(frozen=True)
class ReleaseRequest:
    """The options of `coordinator release`.

    run: name of the stored run.
    broker: its address; None: that of the run, or with `status` none.
    bundle: folder of an exported release; None exports the last round.
    share: agents of the canary, as `canary.draw_agents` takes it; None for all agents.
    promote: whether to promote the canary.
    rollback: whether to roll back.
    status: whether to report only.
    wait: seconds to wait for reports; None for the default.
    force: whether to release or promote despite reasons against it.
    inputs: file of raw examples to export with.
    files_at: address at which a web server has the files of `bundle`; None: the broker has them.
    by: who asks; None: the user of this process.
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
    files_at: str | None = None
    by: Actor | None = None


def check_flags(request: ReleaseRequest) -> None:
    """Raise UsageError for flags that cannot be combined, and for an invalid share."""
    if request.share is not None:
        canary.split_names(request.share)
    making = request.bundle is not None or request.share is not None or request.inputs is not None
    if (request.rollback and (making or request.promote)) or (
        request.status and (making or request.promote or request.rollback)
    ):
        raise UsageError(
            "--rollback and --status cannot be combined with options that release something"
        )
    if request.promote and request.share is None and making:
        raise UsageError(
            "--promote promotes the current canary: add --canary to release a new version and "
            "promote it at once, or omit --bundle and --inputs"
        )
    if request.bundle is not None and request.inputs is not None:
        raise UsageError(
            "--bundle and --inputs cannot be combined: a bundle is already exported, and --inputs "
            "is for the export of the run's last round"
        )
    if request.files_at is not None and request.bundle is None:
        raise UsageError(
            "--files-at needs --bundle: export the release (coordinator export), upload its files, "
            "then release them"
        )
    if request.wait is not None and not 0 <= request.wait < float("inf"):
        raise UsageError(f"--wait: expected at least 0 seconds, found {request.wait:g}")


def describe_request(request: ReleaseRequest) -> tuple[str, str]:
    """Return the command and its options for the audit log."""
    if request.rollback:
        return "roll back", ""
    promotes = request.promote and request.share is None
    options = [f"canary {request.share}"] if request.share is not None else []
    options += ["promote"] if request.promote and not promotes else []
    options += ["force"] if request.force else []
    return "promote" if promotes else "release", ", ".join(options)
