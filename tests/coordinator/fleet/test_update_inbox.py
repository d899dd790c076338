"""Incoming updates in the spool: slots, queue, room on the disk, and restarts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet.update_inbox import IDLE, MAX_DAMAGED, PACE, Inbox
from federated.errors import Refused
from federated.task import Key
from federated.wire import messages
from federated.wire.chunks import slices, split

KEY = Key("a", "w1", 1, "train")
DATA = bytes(range(256)) * 16


def offer(manifest: messages.Manifest) -> messages.Offer:
    return messages.Offer(manifest, "r", 1, 1, "train", KEY[1])


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    made = Inbox(tmp_path, 8)
    made.expect({KEY: len(DATA)})
    return made


def test_a_transfer_that_never_matches_its_manifest_is_given_up(
    inbox: Inbox, tmp_path: Path
) -> None:
    """Otherwise its agent would send it for ever, and the round would wait for it."""
    manifest = replace(split(DATA, 1024, "t"), sha256="0" * 64)
    assert inbox.open("a", offer(manifest), 0.0).open
    for left in reversed(range(MAX_DAMAGED)):
        *most, last = slices(manifest, DATA)
        assert [inbox.take("a", chunk, 0.0) for chunk in most] == [None] * len(most)
        if left:
            with pytest.raises(Refused, match="starts over"):
                inbox.take("a", last, 0.0)
        else:
            assert inbox.take("a", last, 0.0) == (offer(manifest), None)
    assert inbox.load == (0, 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_forget_removes_empty_folders_and_keeps_the_given_updates(
    inbox: Inbox, tmp_path: Path
) -> None:
    """A run that carries tasks from round to round keeps their files, but no empty folders."""
    manifest = split(DATA, 1024, "t")
    inbox.open("a", offer(manifest), 0.0)
    (path,) = {
        done[1]
        for chunk in slices(manifest, DATA)
        if (done := inbox.take("a", chunk, 0.0)) is not None
    }
    assert path is not None
    for number in (2, 3):
        (tmp_path / f"round-{number}").mkdir()
        (tmp_path / f"round-{number}" / "other.update").touch()
    inbox.forget("round-*", keep=[KEY])
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert list(tmp_path.iterdir()) == [path.parent]
    inbox.forget("round-*")
    assert not list(tmp_path.iterdir())


def test_an_expected_update_is_received_after_its_folder_was_removed(inbox: Inbox) -> None:
    inbox.forget("round-*", keep=[KEY])
    assert inbox.open("a", offer(split(DATA, 1024, "t")), 0.0).open


class SlowUpload:
    """An upload that sends one chunk per call. chunk: its bytes; one per IDLE seconds is slower
    than PACE.
    """

    def __init__(self, inbox: Inbox, name: str, chunk: int = 1024) -> None:
        self.inbox, self.key = inbox, KEY._replace(agent=name)
        self.manifest = split(DATA, chunk, name)
        self.chunks = slices(self.manifest, DATA)

    def ask(self, now: float) -> bool:
        return self.inbox.open(self.key[0], offer(self.manifest), now).open

    def send(self, now: float) -> Path | None:
        done = self.inbox.take(self.key[0], next(self.chunks), now)
        return done[1] if done is not None else None


def list_grants(inbox: Inbox, now: float) -> list[tuple[str, bool, bytes]]:
    """Return the due grants: agent, whether it has a slot, and the bitmap."""
    return [(name, grant.open, grant.have) for name, grant in inbox.grants(now)]


def fill_slots(tmp_path: Path, names: str, slots: int) -> tuple[Inbox, list[SlowUpload]]:
    """Return an inbox with all slots taken, and the uploads."""
    inbox = Inbox(tmp_path, slots)
    inbox.expect({KEY._replace(agent=name): len(DATA) for name in names})
    uploads = [SlowUpload(inbox, name) for name in names]
    assert [upload.ask(0.0) for upload in uploads] == [True] * slots + [False] * (
        len(names) - slots
    )
    return inbox, uploads


def test_slow_transfers_in_all_slots_block_others_only_until_they_are_measured(
    tmp_path: Path,
) -> None:
    """Eight transfers that are never silent and never done. Each keeps its chunks and continues
    after the one that waited.
    """
    inbox, uploads = fill_slots(tmp_path, "abcdefghw", 8)
    for upload in uploads[:8]:
        upload.send(20.0)
    assert not [one for one in list_grants(inbox, IDLE) if one[0] == "w"]
    assert list_grants(inbox, IDLE + 1) == [("a", False, b""), ("w", True, b"\0")], (
        "of equally slow ones the first"
    )
    assert [uploads[8].send(IDLE + 1) is not None for _ in range(4)] == [False, False, False, True]
    assert list_grants(inbox, IDLE + 1) == [("a", True, b"\1")]
    assert [uploads[0].send(IDLE + 2) is not None for _ in range(3)] == [False, False, True], (
        "from where it was"
    )


def test_only_as_many_of_the_slowest_lose_their_slots_as_others_wait(tmp_path: Path) -> None:
    inbox, (a, b, _) = fill_slots(tmp_path, "abw", 2)
    for _ in range(3):
        a.send(29.0)
    b.send(29.0)
    list_grants(inbox, IDLE)
    assert [name for name, *_ in list_grants(inbox, IDLE + 1)] == ["b", "w"]


def test_an_agent_with_another_offer_goes_to_the_end_of_the_queue(tmp_path: Path) -> None:
    inbox, _ = fill_slots(tmp_path, "aw", 1)
    for number in range(5):
        other = replace(split(DATA, 1024, f"other-{number}"), sha256=f"{number:064x}")
        assert not inbox.open("a", offer(other), float(number)).open
    assert [name for name, open, _ in list_grants(inbox, 5.0) if open] == ["w"]


def test_a_slow_transfer_keeps_its_slot_while_no_other_waits(tmp_path: Path) -> None:
    inbox, (a, _) = fill_slots(tmp_path, "aw", 2)
    a.send(29.0)
    assert inbox.load == (2, 0)
    list_grants(inbox, IDLE + 1)
    assert inbox.load == (2, 0)


def test_a_transfer_at_the_least_speed_keeps_its_slot(tmp_path: Path) -> None:
    """Only one chunk arrives in the measured time: as large as PACE requires, or a little
    smaller.
    """
    for change, kept in ((1.0, True), (-1.0, False)):
        size = int(PACE * (IDLE + 1) + change)
        data, inbox = bytes(size + 1), Inbox(tmp_path / str(change), 1)
        inbox.expect({KEY: len(data), KEY._replace(agent="w"): len(DATA)})
        manifest = split(data, size, "t")
        assert inbox.open("a", offer(manifest), 0.0).open
        assert not SlowUpload(inbox, "w").ask(0.0)
        inbox.take("a", next(slices(manifest, data)), 20.0)
        assert [name for name, open, _ in list_grants(inbox, IDLE + 1) if open] == (
            ["a"] if kept else ["w"]
        )


def test_no_speed_is_measured_before_all_messages_are_handled(tmp_path: Path) -> None:
    """The coordinator computed for a minute, and the chunks of that time are in its queue."""
    inbox, _ = fill_slots(tmp_path, "aw", 1)
    assert list(inbox.grants(60.0, quiet=False)) == []
    assert [name for name, grant in inbox.grants(60.0) if grant.open] == ["w"]


def test_a_transfer_without_room_waits_until_there_is_some(tmp_path: Path) -> None:
    inbox, endless = Inbox(tmp_path, 2), 2**62
    inbox.expect({KEY._replace(agent=name): len(DATA) for name in "ab"})
    a, b = SlowUpload(inbox, "a"), SlowUpload(inbox, "b")
    inbox.reserve = endless
    assert (a.ask(0.0), b.ask(0.0), inbox.full, inbox.load) == (False, False, True, (0, 2))
    assert list_grants(inbox, 1.0) == [], "it is not tried again and again"
    assert not list(tmp_path.rglob("*.part"))
    inbox.retry(True)
    assert (list_grants(inbox, 2.0), inbox.full) == ([("a", False, b"")], True)
    inbox.reserve = 0
    inbox.retry(True)
    assert list_grants(inbox, 3.0) == [("b", True, b"\0"), ("a", True, b"\0")], (
        "behind the other: there may be room for another one"
    )
    assert (inbox.full, inbox.load) == (False, (2, 0))


def test_the_partial_file_of_a_slow_transfer_is_removed_if_nothing_else_makes_room(
    tmp_path: Path,
) -> None:
    """Otherwise slow transfers would occupy the disk as they occupy slots."""
    inbox, (upload, _) = fill_slots(tmp_path, "aw", 1)
    upload.send(20.0)
    inbox.reserve = 2**62
    assert list_grants(inbox, IDLE + 1) == [
        ("a", False, b""),
        ("w", False, b""),
        ("a", True, b"\1"),
    ], "w finds no room, and a has its own"
    inbox.retry(False)
    assert len(list(tmp_path.rglob("*.part"))) == 1, "what flows will make room"
    assert list_grants(inbox, 2 * IDLE + 3) == [("w", False, b"")], "silent now"
    inbox.retry(False)
    assert not list(tmp_path.rglob("*.part"))
    inbox.reserve = 0
    assert list_grants(inbox, 2 * IDLE + 4) == [("w", True, b"\0")]


def test_a_partial_file_needs_only_the_remaining_room_after_a_restart(tmp_path: Path) -> None:
    first = Inbox(tmp_path, 1)
    first.expect({KEY: len(DATA)})
    upload = SlowUpload(first, "a")
    upload.ask(0.0)
    upload.send(0.0)
    list_grants(first, 2.0)
    second = Inbox(tmp_path, 1)
    second.expect({KEY: len(DATA)})
    second.reserve = shutil.disk_usage(tmp_path).free - 1024  # of the 4096 bytes of it
    assert second.open("a", offer(upload.manifest), 0.0).have == b"\1"


def test_a_preallocated_transfer_continues_after_a_restart_on_a_full_disk(
    tmp_path: Path,
) -> None:
    first, second = Inbox(tmp_path, 1), Inbox(tmp_path, 1)
    for inbox in (first, second):
        inbox.expect({KEY: len(DATA)})
    upload = SlowUpload(first, "a")
    upload.ask(0.0)
    upload.send(0.0)
    list_grants(first, 2.0)
    second.reserve = 2**62
    assert second.open("a", offer(upload.manifest), 0.0).have == b"\1"


def test_chunks_in_flight_when_a_slot_is_lost_are_stored(tmp_path: Path) -> None:
    """Otherwise most bytes of a slow link would arrive between two slots and be lost."""
    inbox, (a, w) = fill_slots(tmp_path, "aw", 1)
    a.send(20.0)
    assert list_grants(inbox, IDLE + 1) == [("a", False, b""), ("w", True, b"\0")]
    a.send(IDLE + 2)
    for _ in range(4):
        w.send(IDLE + 3)
    assert list_grants(inbox, IDLE + 4) == [("a", True, b"\3")]


def test_an_upload_may_complete_without_a_slot(tmp_path: Path) -> None:
    inbox, (a, _) = fill_slots(tmp_path, "aw", 1)
    list_grants(inbox, IDLE + 1)
    a.ask(IDLE + 1)
    assert inbox.load == (1, 1)
    assert [a.send(IDLE + 2) is not None for _ in range(4)] == [False, False, False, True]
    assert inbox.load == (1, 0)


def test_the_partial_file_of_an_earlier_process_is_removed_if_nothing_else_makes_room(
    tmp_path: Path,
) -> None:
    """Its agent may never return, and would block all others."""
    first, second = Inbox(tmp_path, 2), Inbox(tmp_path, 2)
    for inbox in (first, second):
        inbox.expect({KEY._replace(agent=name): len(DATA) for name in "aw"})
    a, w = SlowUpload(first, "a"), SlowUpload(second, "w")
    a.ask(0.0)
    a.send(0.0)
    list_grants(first, 2.0)
    second.reserve = 2**62
    assert not w.ask(0.0)
    second.retry(False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    second.reserve = 0
    assert w.ask(1.0)
