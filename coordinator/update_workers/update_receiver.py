"""Receive the updates that a worker is told to receive: store their chunks, acknowledge them, and
verify complete updates.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coordinator.round.tensor_check import TensorCheck
from coordinator.trust.message_topic_check import check_place
from coordinator.trust.tensor_checks import examine
from coordinator.update_workers.worker_messages import (
    Damaged,
    Drop,
    Failed,
    Flooded,
    Grown,
    Invalid,
    NoRoom,
    Order,
    Pause,
    Receive,
    Report,
    Whole,
)
from federated.errors import Malformed, Refused, WireError
from federated.system.disk_sync import sync
from federated.system.file_mapping import map_file
from federated.wire import envelope, messages, topics
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import Tensors, decode_update
from federated.wire.codecs.weights import decode_weights
from federated.wire.link import Delivery, Link
from federated.wire.partial_file import PartialFile

__all__ = ["UpdateReceiver"]

log = logging.getLogger(__name__)

REPEATED = 1.0  # seconds between repeated chunks that are answered: an answer may have been lost
GROWTH = 0.25  # seconds between reports of an update's growth: the coordinator needs two a second
# invalid chunks after which a transfer is ignored: the coordinator allows an agent no more of them
MOST_INVALID = 300
CACHED = 4  # files of weights that stay mapped


@dataclass
class Incoming:
    """A transfer.

    order: the order to receive it.
    partial: the bytes received so far.
    paused: whether its agent is asked for no more chunks.
    repeated: when a repeated chunk was answered last.
    reported: when its growth was reported last.
    invalid: number of its chunks that were rejected.
    """

    order: Receive
    partial: PartialFile
    paused: bool = False
    repeated: float = 0.0
    reported: float = 0.0
    invalid: int = 0


class UpdateReceiver:
    """The transfers of one worker.

    report: sends a report to the coordinator.
    sync: whether an update is synced to disk before it is reported.
    leads: returns whether no other coordinator took over the run.
    """

    def __init__(
        self,
        link: Link,
        run: str,
        epoch: int,
        report: Callable[[Report], None],
        *,
        sync: bool = True,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._leads = leads
        self._link, self._run, self._epoch, self._report = link, run, epoch, report
        self._sync = sync
        self._transfers = dict[int, Incoming]()
        self._numbers = dict[tuple[str, str], int]()  # of the transfers, by agent and name

    @property
    def busy(self) -> bool:
        """True if chunks are expected."""
        return bool(self._transfers)

    def obey(self, order: Order, now: float) -> None:
        """Carry out an order."""
        match order:
            case Receive():
                self._receive(order, now)
            case Pause(number) if number in self._transfers:
                self._transfers[number].paused = True
            case Drop(number, path):
                if number in self._transfers:
                    self._remove(number).partial.discard()
                Path(path).unlink(missing_ok=True)
            case _:
                pass

    def take(self, delivery: Delivery, now: float) -> None:
        """Store the chunk in a delivery, and verify the update once it is complete."""
        where = topics.parse(delivery.topic)
        if where is None or where.kind != "chunk" or where.agent is None:
            return  # an event of the link
        number = self._numbers.get((where.agent, where.transfer))
        if number is None:
            return  # ended just now
        transfer = self._transfers[number]
        if transfer.invalid >= MOST_INVALID:
            return
        if not transfer.partial.lacks(where.index):
            if now - transfer.repeated < REPEATED:
                return
            transfer.repeated = now
        try:
            chunk = envelope.decode(delivery.payload)
            check_place(chunk, where)
            assert isinstance(chunk, messages.Chunk)  # nothing else belongs on this topic
            self._store(transfer, chunk, now)
        except WireError as error:
            self._reject(transfer, delivery.topic, error)
        except OSError as error:
            self._fail(number, error)

    def grant(self, now: float) -> None:
        """Send the acknowledgements that are due, and report senders of floods."""
        for transfer in self._transfers.values():
            if not transfer.paused and transfer.partial.is_grant_due(now):
                self._acknowledge(transfer)
        for agent in self._link.take_flooders():
            self._report(Flooded(agent))

    def _receive(self, order: Receive, now: float) -> None:
        transfer = self._transfers.get(order.number)
        if transfer is None:
            try:
                partial = PartialFile(
                    order.manifest, Path(order.path), limit=order.manifest.size, sync=self._sync
                )
            except OSError as error:
                self._report_failure(order.number, error)
                return
            transfer = self._transfers[order.number] = Incoming(order, partial)
            self._numbers[order.agent, order.manifest.transfer] = order.number
            self._link.subscribe(self._pattern(order))
        transfer.paused = False
        self._report_growth(transfer, now)
        self._acknowledge(transfer)
        if transfer.partial.complete:  # an earlier worker was killed before it verified it
            try:
                self._finish(transfer)
            except OSError as error:
                self._fail(order.number, error)

    def _store(self, transfer: Incoming, chunk: messages.Chunk, now: float) -> None:
        partial = transfer.partial
        new = partial.take(chunk, now)
        if partial.complete:
            self._finish(transfer)
        elif new and now - transfer.reported >= GROWTH:
            self._report_growth(transfer, now)

    def _finish(self, transfer: Incoming) -> None:
        """Verify a complete update and report it. A worker of a later coordinator does it instead
        once there is one. Raises OSError.
        """
        if not self._leads():
            return
        number = transfer.order.number
        try:
            path = transfer.partial.finish()
        except Refused as error:
            self._report(Damaged(number, str(error)))
            return
        if self._sync:
            sync(path.parent)
        self._remove(number)
        self._report(examine_file(number, path, transfer.order.check))

    def _reject(self, transfer: Incoming, topic: str, error: WireError) -> None:
        transfer.invalid += 1
        self._report(Invalid(topic, str(error), isinstance(error, Malformed)))
        if transfer.invalid == MOST_INVALID:
            self._link.unsubscribe(self._pattern(transfer.order))

    def _fail(self, number: int, error: OSError) -> None:
        self._remove(number).partial.close()
        self._report_failure(number, error)

    def _report_failure(self, number: int, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        self._report(NoRoom(number) if full else Failed(number, str(error)))

    def _report_growth(self, transfer: Incoming, now: float) -> None:
        transfer.reported = now
        self._report(Grown(transfer.order.number, transfer.partial.received))

    def _acknowledge(self, transfer: Incoming) -> None:
        order = transfer.order
        grant = messages.Grant(order.manifest.transfer, transfer.partial.acknowledge(), True)
        topic = topics.command(self._run, order.agent)
        self._link.publish(topic, envelope.encode(grant, self._epoch))

    def _remove(self, number: int) -> Incoming:
        transfer = self._transfers.pop(number)
        self._numbers.pop((transfer.order.agent, transfer.order.manifest.transfer), None)
        self._link.unsubscribe(self._pattern(transfer.order))
        return transfer

    def _pattern(self, order: Receive) -> str:
        return topics.chunk(topics.upload(self._run, order.agent, order.manifest.transfer), "+")


def examine_file(number: int, path: Path, check: TensorCheck | None) -> Whole:
    """Check the tensors of the update in a file, and report it. The coordinator checks them if this
    process cannot read the weights that the agent received, which may be gone by now.
    """
    if check is None:
        return Whole(number)
    try:
        received = read_weights(check.weights, check.weights_codec, check.limit)
    except (OSError, ValueError, WireError) as error:
        log.warning("cannot read %s: %s; the coordinator checks the update", check.weights, error)
        return Whole(number)
    try:
        codec = find_codec(check.codec)
        update = decode_update(map_file(path), codec, check.limit, received)
        return Whole(number, examine(update, check, received))
    except WireError as error:
        return Whole(number, refusal=str(error))
    except Exception as error:  # of a codec of the user: it would end each worker that tries again
        log.exception("the codec '%s' failed", check.codec)
        return Whole(number, refusal=f"the codec '{check.codec}' failed: {error}")


@lru_cache(CACHED)
def read_weights(path: str, codec: str, most: int) -> Tensors:
    """Return the weights in a file, as views of it if they are not encoded."""
    return decode_weights(map_file(Path(path)), codec, most)
