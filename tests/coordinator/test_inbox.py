"""Updates on their way into the spool: what is spoilt again and again is given up, and nothing stays there that nobody waits for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.inbox import SPOILT, Inbox, Key
from federated.errors import Refused
from federated.wire import messages
from federated.wire.chunks import slices, split

KEY: Key = ("a", "w1", 1)
DATA = bytes(range(256)) * 16


def offer(manifest: messages.Manifest) -> messages.Offer:
    return messages.Offer(manifest, "r", 1, 1, "train", KEY[1])


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    made = Inbox(tmp_path, 8)
    made.expect({KEY: len(DATA)}, "round-1")
    return made


def test_a_transfer_that_is_never_what_it_promised_is_given_up(inbox: Inbox, tmp_path: Path) -> None:
    """Else its agent would send it for ever, and the round wait for it."""
    manifest = replace(split(DATA, 1024, "t"), sha256="0" * 64)
    assert inbox.open("a", offer(manifest), 0.0).open
    for left in reversed(range(SPOILT)):
        *most, last = slices(manifest, DATA)
        assert [inbox.take("a", chunk, 0.0) for chunk in most] == [None] * len(most)
        if left:
            with pytest.raises(Refused, match="it starts over"):
                inbox.take("a", last, 0.0)
        else:
            assert inbox.take("a", last, 0.0) == (offer(manifest), None)
    assert inbox.load == (0, 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_folders_go_with_what_was_in_them(inbox: Inbox, tmp_path: Path) -> None:
    """A run that carries tasks from round to round keeps what is of these, and no empty folder of each round."""
    manifest = split(DATA, 1024, "t")
    inbox.open("a", offer(manifest), 0.0)
    (path,) = {done[1] for chunk in slices(manifest, DATA) if (done := inbox.take("a", chunk, 0.0)) is not None}
    assert path is not None
    for number in (2, 3):
        (tmp_path / f"round-{number}").mkdir()
        (tmp_path / f"round-{number}" / "other.update").touch()
    inbox.forget("round-*", keep=[KEY])
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert list(tmp_path.iterdir()) == [path.parent]
    inbox.forget("round-*")
    assert not list(tmp_path.iterdir())


def test_what_is_awaited_has_a_place_though_its_folder_went(inbox: Inbox) -> None:
    inbox.forget("round-*", keep=[KEY])
    assert inbox.open("a", offer(split(DATA, 1024, "t")), 0.0).open
