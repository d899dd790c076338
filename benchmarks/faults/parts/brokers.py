"""Brokers of fault trials, whose servers can be killed and restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.faults.parts.broker_kinds import CLUSTER, KINDS, LOCAL, Place
from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.parts.trial_parts import Process

__all__ = ["Broker", "open_broker"]


class Broker:
    """A broker on fixed ports.

    kind: one of KINDS.
    host: address for clients.
    port, agent_port: for the coordinator and for agents. Those of a cluster are a load balancer's,
        which connects each client to the first node that listens.
    servers: its processes that listen for clients.
    process: the first of them.
    victim: the one that `kill` kills.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "mosquitto",
        *,
        persistent: bool = True,
        host: str = LOCAL,
        under: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kind, self.host, self._proxies = kind, host, list[Proxy]()
        self._all = KINDS[kind](Place(folder, persistent, host))
        self.servers = [one for one in self._all if one.clients]
        for one in self._all:
            one.process = Process(one.name, folder, under)
        self.process, self.victim = self.servers[0].process, self.servers[-1]
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        self.port, self.agent_port = self.servers[0].port, self.servers[-1].port
        if kind == CLUSTER:
            nodes = [(LOCAL, one.port) for one in self.servers]
            self._proxies = [Proxy(*nodes), Proxy(*reversed(nodes))]
            self.port, self.agent_port = (proxy.port for proxy in self._proxies)

    def _start_all(self) -> None:
        # one after another: of three nodes of RabbitMQ that start together, one may never learn
        # which of them leads, and then refuses all clients
        for one in self._all:
            one.start()
            one.wait()

    def start(self) -> None:
        """Start the victim again, and wait until it listens. FleetError: it does not."""
        self.victim.start()
        self.victim.wait()

    def kill(self) -> None:
        """Kill the victim (kill -9); without persistence, it then has no data."""
        self.victim.kill()

    def close(self) -> None:
        """Kill all of it."""
        for proxy in self._proxies:
            proxy.close()
        for one in reversed(self._all):
            one.process.kill()


@contextlib.contextmanager
def open_broker(folder: Path, kind: str) -> Iterator[str]:
    """Run a broker until the end of the context; yield its address for agents."""
    broker = Broker(folder, kind)
    try:
        yield f"{LOCAL}:{broker.agent_port}"
    finally:
        broker.close()
