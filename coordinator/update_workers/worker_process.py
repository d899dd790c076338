"""Run a worker: receive updates as the coordinator orders on standard input, and report on standard
output.

python -m coordinator.update_workers.worker_process
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import IO

from coordinator.store.run_lock import read_holder
from coordinator.update_workers.update_receiver import UpdateReceiver
from coordinator.update_workers.worker_messages import (
    Alive,
    Hello,
    Order,
    Report,
    read_frames,
    write_frame,
)
from federated.errors import EspalierError
from federated.system.child_processes import take_output
from federated.wire.link import LINK_DOWN, LimitableLink, Link
from federated.wire.links.catalogue import open_link

__all__ = ["main"]

QUIET = 0.005  # seconds to wait for a message while orders may come
IDLE = 1.0  # seconds to wait for an order while no message is expected
SIGN = 5.0  # seconds between signs of life
LOOK = 0.5  # seconds between looks at the lock of the run
TAKEN_OVER = b"session taken over"


class Worker:
    """One worker.

    link: its connection to the broker.
    reports: where reports go.
    """

    def __init__(self, hello: Hello, link: Link, reports: IO[bytes]) -> None:
        self.link, self._reports = link, reports
        if isinstance(link, LimitableLink):
            link.limit(None, hello.rate)
        self._hello = hello
        self.receiver = UpdateReceiver(
            link, hello.run, hello.epoch, self.report, sync=hello.sync, leads=self.leads
        )
        self._signed = self._looked = 0.0

    def leads(self) -> bool:
        """Return False once another coordinator has taken over the run: its workers write the same
        files.
        """
        if not self._hello.lock:
            return True
        try:
            return read_holder(Path(self._hello.lock)) == self._hello.holder
        except FileNotFoundError:
            return False
        except OSError:  # a disk that fails is reported by those who write
            return True

    def report(self, report: Report) -> None:
        write_frame(self._reports, report)

    def turn(self, orders: queue.SimpleQueue[Order | None]) -> bool:
        """Carry out an order, handle a message, and acknowledge what is due. Return False once the
        coordinator has ended, or another one has taken over the run.
        """
        if time.monotonic() - self._signed >= SIGN:
            self._signed = time.monotonic()
            self.report(Alive())
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            if not self.leads():
                return False
        busy = self.receiver.busy
        try:
            order = orders.get_nowait() if busy else orders.get(timeout=IDLE)
        except queue.Empty:
            pass
        else:
            if order is None:
                return False
            self.receiver.obey(order, time.monotonic())
        delivery = self.link.receive(QUIET if busy else 0.0)
        if delivery is not None:
            if delivery.topic == LINK_DOWN and TAKEN_OVER in delivery.payload.lower():
                # a worker of the later coordinator has this one's name; MQTT 3.1.1 does not say so
                return False
            self.receiver.take(delivery, time.monotonic())
        self.receiver.grant(time.monotonic())
        return True


def read_orders(orders: queue.SimpleQueue[Order | None]) -> None:
    """Queue the coordinator's orders, and None at their end."""
    for order in read_frames(sys.stdin.buffer, Order):
        orders.put(order)
    orders.put(None)


def main() -> None:
    """Work until standard input closes."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    reports = os.fdopen(take_output(), "wb")
    orders = queue.SimpleQueue[Order | None]()
    threading.Thread(target=read_orders, args=(orders,), daemon=True).start()
    hello = orders.get()
    if not isinstance(hello, Hello):
        return  # the coordinator ended
    try:
        with closing(open_link(hello.address, hello.client_id)) as link:
            worker = Worker(hello, link, reports)
            while worker.turn(orders):
                pass
        # the thread that waits for orders holds standard input, which an orderly exit would close
        os._exit(0)
    except EspalierError as error:
        sys.exit(str(error))
    except BrokenPipeError:  # the coordinator was killed
        os._exit(1)


if __name__ == "__main__":
    main()
