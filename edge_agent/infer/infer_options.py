"""The options of `edge-agent infer`, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_agent.releases.release_options import ReleaseRequest

__all__ = ["InferRequest"]


@dataclass(frozen=True)
class InferRequest(ReleaseRequest):
    """Options of the command; see `edge-agent infer --help`."""

    sha256: str | None = None
    inputs: tuple[Path, ...] = ()
    resize: bool = False
    explain: bool = False
    threads: int = 0
    serve: str | None = None
    token_file: Path | None = None
    mqtt: bool = False

    @property
    def serves(self) -> bool:
        """True if the command serves until stopped."""
        return self.serve is not None or self.mqtt
