"""Finished updates are sent as the coordinator allows, and go on where it is after a restart or a
lost link.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from federated.device.spool import Spool
from federated.device.uploads import AHEAD, Uploads
from federated.wire import envelope, messages, topics
from federated.wire.chunks import STALL, WINDOW
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.clerk import AGENT, CARD, CHUNK, RUN, Clerk, lasting, task

UPDATE = bytes(range(256)) * 400  # 100 chunks of 1 KiB


class Desk:
    """Uploads, and the coordinator that they go to."""

    def __init__(self, folder: Path, chunk: int = CHUNK, clerk: Clerk | None = None) -> None:
        self.clerk = clerk or Clerk(MemoryBroker())
        self.broker = self.clerk.broker
        self.link = MemoryLink(self.broker, "a", chunk=chunk)
        self.link.subscribe(topics.command(RUN, AGENT))
        self.spool = lasting(folder)
        self.uploads = Uploads(self.link, RUN, AGENT, self.spool)

    def finish(self, round: int = 1, update: bytes = UPDATE) -> None:
        made = task(round)
        path = self.spool.update(made.transfer)
        path.write_bytes(update)
        self.uploads.add(made, path, CARD)
        self.uploads.offer(made, anew=True)

    def offers(self) -> list[messages.Offer]:
        return [said for said in self.clerk.hear() if isinstance(said, messages.Offer)]

    def flow(self, now: float = 0.0) -> None:
        """The coordinator says what it has of everything; the agent hears it and sends."""
        for receiver in self.clerk.receivers.values():
            self.clerk.tell(messages.Grant(receiver.manifest.transfer, receiver.have, True))
        while (delivery := self.link.receive(0)) is not None:
            message = envelope.decode(delivery.payload)
            assert isinstance(message, messages.Grant)
            self.uploads.granted(message, now)
        self.uploads.send(now)
        self.clerk.hear()


def test_a_restart_goes_on_where_the_receiver_is_in_the_pieces_of_before(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    first.finish()
    (offer,) = first.offers()
    first.clerk.grant(offer)
    first.flow()
    assert len(first.clerk.chunks) == WINDOW
    first.link.kill()
    first.spool.close()
    second = Desk(tmp_path, 4 * CHUNK, first.clerk)  # this link would let larger pieces through
    assert list(second.uploads.resume(CARD)) == [task()]
    second.uploads.offer(task(), anew=True)
    assert second.offers() == [offer], "the same name, the same pieces"
    while not first.clerk.receivers[offer.manifest.transfer].complete:
        second.flow()
    assert bytes(first.clerk.receivers[offer.manifest.transfer].finish()) == UPDATE
    assert sorted(index for _, index in first.clerk.chunks) == list(range(100)), "each chunk once"


def test_pieces_that_no_longer_pass_are_cut_anew(tmp_path: Path) -> None:
    first = Desk(tmp_path, chunk=4 * CHUNK)
    first.finish()
    first.spool.close()
    second = Desk(tmp_path)
    assert list(second.uploads.resume(CARD)) == [task()]
    second.uploads.offer(task(), anew=True)
    (offer,) = second.offers()
    assert offer.manifest.chunk == CHUNK


def test_an_answer_that_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    """The receiver has every chunk, and says so; what it says of the whole does not arrive."""
    desk = Desk(tmp_path)
    desk.finish(update=UPDATE[:3000])
    (offer,) = desk.offers()
    desk.clerk.grant(offer)
    desk.flow()
    desk.flow()
    assert desk.clerk.receivers[offer.manifest.transfer].complete
    assert desk.uploads.stalled(STALL - 0.1) == []
    assert desk.uploads.stalled(STALL) == [task()]
    assert desk.uploads.stalled(STALL + 0.1) == [], "once, then after a longer while"


def test_what_was_under_way_when_the_link_fell_is_sent_again_if_it_was_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.finish()
    (offer,) = desk.offers()
    desk.clerk.grant(offer)
    desk.broker.tamper = lambda delivery: [] if "/up/" in delivery.topic else [delivery]
    desk.flow()
    assert desk.clerk.chunks == []
    desk.broker.tamper = None
    desk.flow()
    assert desk.clerk.chunks == [], "it may still arrive"
    desk.uploads.offer(task(), anew=True)
    desk.flow()
    assert [index for _, index in desk.clerk.chunks] == list(range(WINDOW)), (
        "nothing counts as under way any more"
    )


def test_several_updates_together_stay_below_what_a_link_queues(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for round in range(1, 5):
        desk.finish(round)
    for offer in desk.offers():
        desk.clerk.grant(offer)
    desk.broker.tamper = lambda delivery: [] if "/up/" in delivery.topic else [delivery]
    sent = desk.link.sent_bytes
    desk.flow()
    desk.flow()
    assert AHEAD * CHUNK < desk.link.sent_bytes - sent < AHEAD * CHUNK * 1.5


def test_an_empty_update_is_none(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(ValueError, match="empty"):
        desk.finish(update=b"")


def test_a_spool_that_does_not_last_resumes_nothing(tmp_path: Path) -> None:
    uploads = Uploads(MemoryLink(MemoryBroker(), "a"), RUN, AGENT, Spool(tmp_path))
    assert list(uploads.resume(CARD)) == []
