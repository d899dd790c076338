"""Scenarios of the faults benchmark in which weights and updates travel over HTTP: through the
coordinator's server or an S3-compatible store, which fail, or lose connections or objects.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec

import psutil

from benchmarks.faults.parts.object_store import (
    BUCKET,
    CREDENTIALS,
    StoreServer,
    Way,
    find_weed,
    run_store,
)
from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.real_agent_scenarios import use_real_agents
from benchmarks.faults.trial import Trial, break_later
from benchmarks.faults.trial_settings import ROUNDS
from coordinator.broker.local_addresses import find_free_port

__all__ = [
    "AWAY",
    "LONG_AWAY",
    "cut_transfers",
    "disable_store",
    "explain_no_server",
    "explain_no_store",
    "kill_server",
    "kill_store",
    "lose_object",
]

LASTING = 1.5  # seconds; a run of real agents lasts longer
AWAY = (2.0, 10.0)  # seconds for which a store fails
LONG_AWAY = (40.0, 60.0)  # longer than several leases
UPDATE = 310_000  # bytes of an update, and of weights
BEFORE = 2_000  # bytes of requests before the first transfer
LOCAL = "127.0.0.1"


def explain_no_server() -> str:
    """Return why this machine cannot serve transfers; empty if it can."""
    return "" if find_spec("uvicorn") else "uvicorn is not installed; install the extra serve"


def explain_no_store() -> str:
    """Return why this machine cannot run a store; empty if it can."""
    if find_spec("botocore") is None:
        return "botocore is not installed; install the extra store"
    return "" if find_weed() else "SeaweedFS is not installed; install the extra dev"


def use_server(trial: Trial) -> int:
    """Let the trial transfer over HTTP. Return the port of the coordinator's server."""
    use_real_agents(trial)
    port = find_free_port(LOCAL, 0)
    trial.settings = {**trial.settings, "http.listen": f"{LOCAL}:{port}"}
    return port


def kill_server(trial: Trial) -> None:
    """Kill the process that serves transfers (kill -9)."""
    port = use_server(trial)

    def cause_fault() -> None:
        popen = trial.coordinator.popen
        assert popen is not None
        for one in psutil.Process(popen.pid).children(recursive=True):
            if any(place.laddr.port == port for place in one.net_connections("tcp")):
                one.kill()
                trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def cut_transfers(way: str) -> Callable[[Trial], None]:
    """Cut all connections to the server at 10 to 90 % of a transfer, once in each round."""

    def prepare(trial: Trial) -> None:
        port = use_server(trial)
        proxy = trial.stack.enter_context(closing(Proxy((LOCAL, port))))
        trial.settings = {**trial.settings, "http.url": f"http://{LOCAL}:{proxy.port}"}
        cuts = proxy.cut_up if way == "up" else proxy.cut_down
        cuts.extend(BEFORE + int(trial.rng.uniform(0.1, 0.9) * UPDATE) for _ in range(ROUNDS))

        def each() -> None:
            while proxy.cut > len(trial.fault_times):
                trial.record_fault()

        trial.each_turn.append(each)

    return prepare


def use_store(trial: Trial) -> tuple[StoreServer, Way]:
    """Let the trial transfer through a store. Return it, and the way that all take to it."""
    use_real_agents(trial)
    server = trial.stack.enter_context(run_store(trial.folder / "store"))
    way = trial.stack.enter_context(closing(Way(server.endpoint)))
    trial.settings = {
        **{name: value for name, value in trial.settings.items() if name != "http.listen"},
        "http.store": f"s3://{BUCKET}",
        "http.endpoint": way.endpoint,
    }
    trial.variables = CREDENTIALS
    return server, way


def kill_store(trial: Trial) -> None:
    """Kill the store (kill -9), and restart it 2 to 10 s later."""
    server, _ = use_store(trial)
    away = trial.rng.uniform(*AWAY)

    def cause_fault() -> None:
        server.process.kill()
        trial.record_fault()
        trial.call_later(away, server.start)

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def disable_store(seconds: tuple[float, float]) -> Callable[[Trial], None]:
    """Let the store answer 503 to everything. seconds: from least to most."""

    def prepare(trial: Trial) -> None:
        _, way = use_store(trial)
        away = trial.rng.uniform(*seconds)

        def recover() -> None:
            way.away = False

        def cause_fault() -> None:
            way.break_down()
            trial.record_fault()
            trial.call_later(away, recover)

        break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))

    return prepare


def lose_object(what: str) -> Callable[[Trial], None]:
    """Delete an object of the store in a round, once it exists. what: part of its key."""

    def prepare(trial: Trial) -> None:
        server, _ = use_store(trial)
        rounds = sorted(trial.rng.sample(range(1, ROUNDS + 1), 2))

        def each() -> None:
            if not rounds or trial.round < rounds[0]:
                return
            if found := [key for key in server.list_objects() if f"/{what}/" in key]:
                server.delete(trial.rng.choice(found))
                trial.record_fault()
                rounds.pop(0)

        trial.each_turn.append(each)

    return prepare
