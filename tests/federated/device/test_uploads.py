"""Finished updates are sent as the coordinator allows, also after a restart or a lost link."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from federated.device.agent_run_files import Spool
from federated.device.transfers import AHEAD, Uploads
from federated.wire import envelope, messages, topics
from federated.wire.chunks import STALL, WINDOW
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.scripted_coordinator import (
    AGENT,
    CARD,
    CHUNK,
    RUN,
    ScriptedCoordinator,
    open_spool,
    task,
)
from tests.support.waiting import eventually

UPDATE = bytes(range(256)) * 400  # 100 chunks of 1 KiB


class Desk:
    """The uploads of an agent, and its coordinator."""

    def __init__(
        self, folder: Path, chunk: int = CHUNK, clerk: ScriptedCoordinator | None = None
    ) -> None:
        self.clerk = clerk or ScriptedCoordinator(MemoryBroker())
        self.broker = self.clerk.broker
        self.link = MemoryLink(self.broker, "a", chunk=chunk)
        self.link.subscribe(topics.command(RUN, AGENT))
        self.spool = open_spool(folder)
        self.uploads = Uploads(self.link, RUN, AGENT, self.spool)

    def finish(self, round: int = 1, update: bytes = UPDATE) -> None:
        made = task(round)
        path = self.spool.update_path(made.transfer)
        path.write_bytes(update)
        self.uploads.add(made, path, CARD)
        self.uploads.offer(made, restart=True)

    def offers(self) -> list[messages.Offer]:
        return [said for said in self.clerk.hear() if isinstance(said, messages.Offer)]

    def flow(self, now: float = 0.0) -> None:
        """Send the bitmaps to the agent, and its chunks to the coordinator."""
        for receiver in self.clerk.receivers.values():
            self.clerk.tell(
                messages.Grant(receiver.manifest.transfer, receiver.acknowledge(), True)
            )
        while (delivery := self.link.receive(0)) is not None:
            message = envelope.decode(delivery.payload)
            assert isinstance(message, messages.Grant)
            self.uploads.take_grant(message, now)
        self.uploads.send()
        self.clerk.hear()


def test_a_restart_resumes_with_the_same_chunks(tmp_path: Path) -> None:
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
    second.uploads.offer(task(), restart=True)
    assert second.offers() == [offer], "the same name, the same pieces"
    while not first.clerk.receivers[offer.manifest.transfer].complete:
        second.flow()
    assert bytes(first.clerk.receivers[offer.manifest.transfer].verify()) == UPDATE
    assert sorted(index for _, index in first.clerk.chunks) == list(range(100)), "each chunk once"


def test_chunks_over_a_lower_limit_are_split_again(tmp_path: Path) -> None:
    first = Desk(tmp_path, chunk=4 * CHUNK)
    first.finish()
    first.spool.close()
    second = Desk(tmp_path)
    assert list(second.uploads.resume(CARD)) == [task()]
    second.uploads.offer(task(), restart=True)
    (offer,) = second.offers()
    assert offer.manifest.chunk == CHUNK


def test_a_lost_receipt_is_requested_again(tmp_path: Path) -> None:
    """The receiver has every chunk and acknowledges them, but its receipt is lost."""
    desk = Desk(tmp_path)
    desk.finish(update=UPDATE[:3000])
    (offer,) = desk.offers()
    desk.clerk.grant(offer)
    desk.flow()
    desk.flow()
    assert desk.clerk.receivers[offer.manifest.transfer].complete
    assert desk.uploads.check_stalls(STALL - 0.1) == []
    assert desk.uploads.check_stalls(STALL) == [task()]
    assert desk.uploads.check_stalls(STALL + 0.1) == [], "once, then after a longer while"


class Store(BaseHTTPRequestHandler):
    """Takes an object and loses it."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()


def test_an_update_that_a_store_lost_is_offered_again_soon(tmp_path: Path) -> None:
    """The coordinator waits for the object, and nothing tells it that it was lost. An update whose
    turn has not come waits longer: see `Sender.check_stall`.
    """
    desk = Desk(tmp_path)
    desk.finish()
    with HTTPServer(("127.0.0.1", 0), Store) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/update"
        grant = messages.Grant(
            task().transfer, b"", True, parts=(messages.Part(0, len(UPDATE), url),)
        )
        desk.uploads.take_grant(grant, 0.0)
        assert eventually(lambda: desk.uploads.check_stalls(1.0)) == [task()], "it is there"
        server.shutdown()
        thread.join()
    desk.uploads.take_grant(messages.Grant(task().transfer, b"", False), 1.0)
    assert desk.uploads.check_stalls(1.0 + STALL) == [task()]


def test_chunks_lost_with_the_link_are_sent_again(tmp_path: Path) -> None:
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
    desk.uploads.offer(task(), restart=True)
    desk.flow()
    assert [index for _, index in desk.clerk.chunks] == list(range(WINDOW)), (
        "no upload counts as in progress"
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


def test_an_empty_update_is_an_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(ValueError, match="empty"):
        desk.finish(update=b"")


def test_a_temporary_spool_resumes_nothing(tmp_path: Path) -> None:
    uploads = Uploads(MemoryLink(MemoryBroker(), "a"), RUN, AGENT, Spool(tmp_path))
    assert list(uploads.resume(CARD)) == []
