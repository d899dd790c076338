"""The interface of a transfer of a blob to or from the address that a coordinator names."""

from __future__ import annotations

from typing import Protocol

__all__ = ["BlobTransfer"]


class BlobTransfer(Protocol):
    """A transfer of a blob, which `start` begins.

    url: of the blob.
    moved: bytes that the receiver has.
    failure: why it was given up; None: it was not.
    """

    url: str
    moved: int
    failure: Exception | None

    @property
    def running(self) -> bool:
        """Whether it may still move bytes."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End. Nothing is moved afterwards."""
