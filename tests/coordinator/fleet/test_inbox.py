"""Updates on their way into the spool: what is spoilt again and again is given up, and nothing
stays there that nobody waits for.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet.inbox import IDLE, PACE, SPOILT, Inbox
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


def test_a_transfer_that_is_never_what_it_promised_is_given_up(
    inbox: Inbox, tmp_path: Path
) -> None:
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
    """A run that carries tasks from round to round keeps what is of these, and no empty folder of
    each round.
    """
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


def test_what_is_awaited_has_a_place_though_its_folder_went(inbox: Inbox) -> None:
    inbox.forget("round-*", keep=[KEY])
    assert inbox.open("a", offer(split(DATA, 1024, "t")), 0.0).open


class Drip:
    """An upload of which a test sends one chunk after the other. chunk: so large that one in IDLE
    seconds is less than the least pace.
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


def told(inbox: Inbox, now: float) -> list[tuple[str, bool, bytes]]:
    """Who is told what: whether it has a slot, and the bitmap."""
    return [(name, grant.open, grant.have) for name, grant in inbox.grants(now)]


def full(tmp_path: Path, names: str, slots: int) -> tuple[Inbox, list[Drip]]:
    inbox = Inbox(tmp_path, slots)
    inbox.expect({KEY._replace(agent=name): len(DATA) for name in names})
    drips = [Drip(inbox, name) for name in names]
    assert [drip.ask(0.0) for drip in drips] == [True] * slots + [False] * (len(names) - slots)
    return inbox, drips


def test_drips_in_all_slots_hold_up_nobody_for_longer_than_they_are_judged(tmp_path: Path) -> None:
    """Eight that are never silent and never done; what each sent stays, and it goes on behind the
    one that waited.
    """
    inbox, drips = full(tmp_path, "abcdefghw", 8)
    for drip in drips[:8]:
        drip.send(20.0)
    assert not [one for one in told(inbox, IDLE) if one[0] == "w"]
    assert told(inbox, IDLE + 1) == [("a", False, b""), ("w", True, b"\0")], (
        "of equally slow ones the first"
    )
    assert [drips[8].send(IDLE + 1) is not None for _ in range(4)] == [False, False, False, True]
    assert told(inbox, IDLE + 1) == [("a", True, b"\1")]
    assert [drips[0].send(IDLE + 2) is not None for _ in range(3)] == [False, False, True], (
        "from where it was"
    )


def test_the_slowest_loses_its_slot_and_no_more_do_than_wait(tmp_path: Path) -> None:
    inbox, (a, b, _) = full(tmp_path, "abw", 2)
    for _ in range(3):
        a.send(29.0)
    b.send(29.0)
    told(inbox, IDLE)
    assert [name for name, *_ in told(inbox, IDLE + 1)] == ["b", "w"]


def test_an_agent_that_offers_something_else_goes_to_the_end_of_the_line(tmp_path: Path) -> None:
    inbox, _ = full(tmp_path, "aw", 1)
    for number in range(5):
        other = replace(split(DATA, 1024, f"other-{number}"), sha256=f"{number:064x}")
        assert not inbox.open("a", offer(other), float(number)).open
    assert [name for name, open, _ in told(inbox, 5.0) if open] == ["w"]


def test_a_slow_transfer_keeps_its_slot_where_nobody_waits_for_it(tmp_path: Path) -> None:
    inbox, (a, _) = full(tmp_path, "aw", 2)
    a.send(29.0)
    assert inbox.load == (2, 0)
    told(inbox, IDLE + 1)
    assert inbox.load == (2, 0)


def test_a_transfer_at_the_least_pace_keeps_its_slot(tmp_path: Path) -> None:
    """One chunk of a transfer is all that comes in the time: as large as the pace asks for, and a
    little less.
    """
    for change, kept in ((1.0, True), (-1.0, False)):
        size = int(PACE * (IDLE + 1) + change)
        data, inbox = bytes(size + 1), Inbox(tmp_path / str(change), 1)
        inbox.expect({KEY: len(data), KEY._replace(agent="w"): len(DATA)})
        manifest = split(data, size, "t")
        assert inbox.open("a", offer(manifest), 0.0).open
        assert not Drip(inbox, "w").ask(0.0)
        inbox.take("a", next(slices(manifest, data)), 20.0)
        assert [name for name, open, _ in told(inbox, IDLE + 1) if open] == (
            ["a"] if kept else ["w"]
        )


def test_nobody_is_judged_by_what_was_not_heard_yet(tmp_path: Path) -> None:
    """The coordinator computed for a minute: the chunks of that time are in its queue."""
    inbox, _ = full(tmp_path, "aw", 1)
    assert list(inbox.grants(60.0, quiet=False)) == []
    assert [name for name, grant in inbox.grants(60.0) if grant.open] == ["w"]


def test_what_finds_no_room_waits_and_is_told_when_there_is_some(tmp_path: Path) -> None:
    inbox, endless = Inbox(tmp_path, 2), 2**62
    inbox.expect({KEY._replace(agent=name): len(DATA) for name in "ab"})
    a, b = Drip(inbox, "a"), Drip(inbox, "b")
    inbox.reserve = endless
    assert (a.ask(0.0), b.ask(0.0), inbox.full, inbox.load) == (False, False, True, (0, 2))
    assert told(inbox, 1.0) == [], "it is not tried again and again"
    assert not list(tmp_path.rglob("*.part"))
    inbox.retry(True)
    assert (told(inbox, 2.0), inbox.full) == ([("a", False, b"")], True)
    inbox.reserve = 0
    inbox.retry(True)
    assert told(inbox, 3.0) == [("b", True, b"\0"), ("a", True, b"\0")], (
        "behind the other: there may be room for another one"
    )
    assert (inbox.full, inbox.load) == (False, (2, 0))


def test_what_a_slow_upload_left_goes_where_nothing_else_makes_room(tmp_path: Path) -> None:
    """Else drips would hold the disk as they hold slots. It is sent anew when there is room."""
    inbox, (drip, _) = full(tmp_path, "aw", 1)
    drip.send(20.0)
    inbox.reserve = 2**62
    assert told(inbox, IDLE + 1) == [("a", False, b""), ("w", False, b""), ("a", True, b"\1")], (
        "w finds no room, and a has its own"
    )
    inbox.retry(False)
    assert len(list(tmp_path.rglob("*.part"))) == 1, "what flows will make room"
    assert told(inbox, 2 * IDLE + 3) == [("w", False, b"")], "silent now"
    inbox.retry(False)
    assert not list(tmp_path.rglob("*.part"))
    inbox.reserve = 0
    assert told(inbox, 2 * IDLE + 4) == [("w", True, b"\0")]


def test_what_is_there_of_an_upload_takes_no_more_room_after_a_restart(tmp_path: Path) -> None:
    first = Inbox(tmp_path, 1)
    first.expect({KEY: len(DATA)})
    drip = Drip(first, "a")
    drip.ask(0.0)
    drip.send(0.0)
    told(first, 2.0)
    second = Inbox(tmp_path, 1)
    second.expect({KEY: len(DATA)})
    second.reserve = shutil.disk_usage(tmp_path).free - 1024  # of the 4096 bytes of it
    assert second.open("a", offer(drip.manifest), 0.0).have == b"\1"


def test_what_is_there_of_an_upload_goes_on_though_others_took_what_is_reserved(
    tmp_path: Path,
) -> None:
    first, second = Inbox(tmp_path, 1), Inbox(tmp_path, 1)
    for inbox in (first, second):
        inbox.expect({KEY: len(DATA)})
    drip = Drip(first, "a")
    drip.ask(0.0)
    drip.send(0.0)
    told(first, 2.0)
    second.reserve = 2**62
    assert second.open("a", offer(drip.manifest), 0.0).have == b"\1"


def test_what_was_under_way_when_a_slot_went_is_kept(tmp_path: Path) -> None:
    """Else a slow link would bring most of its bytes between two slots, for nothing."""
    inbox, (a, w) = full(tmp_path, "aw", 1)
    a.send(20.0)
    assert told(inbox, IDLE + 1) == [("a", False, b""), ("w", True, b"\0")]
    a.send(IDLE + 2)
    for _ in range(4):
        w.send(IDLE + 3)
    assert told(inbox, IDLE + 4) == [("a", True, b"\3")]


def test_an_upload_that_is_whole_without_a_slot_is_done(tmp_path: Path) -> None:
    inbox, (a, _) = full(tmp_path, "aw", 1)
    told(inbox, IDLE + 1)
    a.ask(IDLE + 1)
    assert inbox.load == (1, 1)
    assert [a.send(IDLE + 2) is not None for _ in range(4)] == [False, False, False, True]
    assert inbox.load == (1, 0)


def test_what_an_earlier_process_had_goes_where_nothing_else_makes_room(tmp_path: Path) -> None:
    """Of agents that never come back, say: nobody else could send."""
    first, second = Inbox(tmp_path, 2), Inbox(tmp_path, 2)
    for inbox in (first, second):
        inbox.expect({KEY._replace(agent=name): len(DATA) for name in "aw"})
    a, w = Drip(first, "a"), Drip(second, "w")
    a.ask(0.0)
    a.send(0.0)
    told(first, 2.0)
    second.reserve = 2**62
    assert not w.ask(0.0)
    second.relieved(False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    second.reserve = 0
    assert w.ask(1.0)
