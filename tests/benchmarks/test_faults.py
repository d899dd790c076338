"""The fault campaign: each kind of fault has its effect, and real ones run once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.faults import results
from benchmarks.faults.command import derive_seed
from benchmarks.faults.outcome import Outcome
from benchmarks.faults.parts.broker_kinds import KINDS, describe_broker, find_missing
from benchmarks.faults.parts.lossy_disk import LossyDisk
from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.power_cuts import explain_unmountable, mount_lossy_disk
from benchmarks.faults.results import summarise
from benchmarks.faults.scenarios import (
    LEFT_OUT,
    SCENARIOS,
    damage,
    explain_impossible,
    list_scenarios,
)
from benchmarks.faults.trial import run_trial
from benchmarks.generated_docs.fault_tables import list_faults
from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from coordinator.broker import local_broker as brokers
from coordinator.broker.local_addresses import find_free_port
from federated.errors import ConfigError, FleetError
from tests.support.brokers import needs_mosquitto, run_mosquitto

# Kinds of faults that need real processes, links or disks. Schedules in virtual time try the others
# thousands of times (see test_fault_schedules), and `python -m benchmarks faults` tries all.
REAL = (
    "coordinator during a fold",
    "coordinator while it stores",
    "upload cut",
    "chunks damaged",
    "broker killed",
    "broker without persistence",
    "agent process killed",
    "gateway killed",
    "uplink of a site cut",
    "slow subscriber",
    "disk full",
    "power cut",
    "power cut of an agent",
    "disk of an agent full",
    "1 MB/s and 300 ms",
)
ROOT_ONLY = ("disk full", "disk of an agent full", "1 MB/s and 300 ms")
FUSED = """
import sys
from contextlib import contextmanager
from benchmarks.faults.self_killing_coordinator import Fuse
@contextmanager
def timing(watch, what):
    yield
fuse = Fuse(timing, "fold", sys.argv[1], 2, 0.0)
for number in (1, 2, 3):
    print("to", number, flush=True)
    with fuse(None, "fold"):
        print("in", number, flush=True)
    with fuse(None, "save"):
        pass
"""


@pytest.mark.parametrize(("when", "last"), [("before", "to 2"), ("after", "in 2")])
def test_a_fuse_kills_its_process_at_the_instant_that_was_drawn(when: str, last: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FUSED, when], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.splitlines()[-1] == last


@contextlib.contextmanager
def echo() -> object:
    """Run a server that counts the received bytes and sends them back."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = server.accept()
                with contextlib.suppress(OSError):
                    while data := one.recv(65536):
                        one.sendall(data)
                one.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()
    finally:
        server.close()


def test_a_proxy_passes_everything_until_it_cuts() -> None:
    with echo() as target:
        proxy = Proxy(target)
        try:
            proxy.cut_up.append(1_000_000)
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as near:
                near.sendall(b"x" * 100_000)
                found = b""
                while len(found) < 100_000:
                    found += near.recv(65536)
                assert found == b"x" * 100_000
                assert proxy.cut == 0
                with contextlib.suppress(OSError):
                    near.sendall(b"y" * 2_000_000)
                    while near.recv(65536):
                        pass
                assert proxy.cut == 1
        finally:
            proxy.close()


def test_damage_is_one_bit() -> None:
    (made,) = damage(bytes(100), random.Random(1))
    assert sum(byte.bit_count() for byte in made) == 1


def write(disk: LossyDisk, name: str, content: bytes, *, sync: bool) -> None:
    handle = disk.create(f"/{name}", 0o600)
    disk.write(None, content, 0, handle)
    if sync:
        disk.fsync(None, 0, handle)
    disk.release(None, handle)


def names(disk: LossyDisk) -> set[str]:
    return {name for name, *_ in disk.readdir("/", 0)} - {".", ".."}


def test_a_power_cut_keeps_what_was_synced_and_can_lose_everything_else() -> None:
    kept, torn = set[frozenset[str]](), set[bytes]()
    for seed in range(60):
        disk = LossyDisk(random.Random(seed))
        write(disk, "synced", b"all of it", sync=True)
        write(disk, "torn", b"content", sync=False)
        disk.fsyncdir("/", 0, 0)
        write(disk, "unnamed", b"x", sync=True)
        disk.rename("/synced", "/renamed")
        disk.cut_power()
        kept.add(frozenset(names(disk) - {"torn"}))
        torn.add(disk.read(None, 99, 0, disk.open("/torn", 0)))
        for name in names(disk) & {"synced", "renamed"}:
            assert disk.read(None, 99, 0, disk.open(f"/{name}", 0)) == b"all of it"
    assert len(kept) == 8  # each of three names is there or not
    assert {b"", b"cont", b"content"} <= torn
    disk.cut_power()
    assert frozenset(names(disk) - {"torn"}) in kept  # a second cut changes nothing


def test_nothing_reaches_a_disk_after_its_power_cut() -> None:
    disk = LossyDisk(random.Random(1), [3], caller=lambda: 0)
    write(disk, "file", b"x", sync=False)
    with pytest.raises(OSError, match="error"):
        disk.fsyncdir("/", 0, 0)
    with pytest.raises(OSError, match="error"):
        disk.mkdir("/folder", 0o700)
    disk.cut_power()
    disk.mkdir("/folder", 0o700)
    assert "folder" in names(disk)


CUT = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
for name in ("a", "b", "c"):
    with open(folder / name, "w") as file:
        file.write(name)
        file.flush()
        os.fsync(file.fileno())
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
"""


@pytest.mark.processes
@pytest.mark.skipif(bool(explain_unmountable()), reason=explain_unmountable() or "possible")
def test_a_mounted_disk_kills_its_user_and_keeps_what_was_synced(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    # creation, write, sync of the file, sync of the folder; the ninth change creates the third file
    with mount_lossy_disk(folder, tmp_path, 1, [9]) as power:
        done = subprocess.run([sys.executable, "-c", CUT, str(folder)], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        power.cut()
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "a", "b": "b"}


def test_a_run_that_did_not_recover_counts_as_lost() -> None:
    good = Outcome("s", 1, 2, True, 0, 0, True, (1.0, 3.0), 9.0)
    bad = Outcome("s", 2, 1, False, 12, 0, False, (), 150.0, "not over")
    found = summarise("s", [good, bad])
    assert (found.runs, found.injected, found.survived, found.lost_updates, found.equal) == (
        2,
        3,
        1,
        12,
        1,
    )
    assert (found.recovery_s, found.longest_s) == (2.0, 3.0)
    assert found.why == ("seed 2: not over",)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of saved results."""
    monkeypatch.setattr(results, "FOLDER", tmp_path / "faults")
    return tmp_path / "faults"


def test_saved_results_of_a_scenario_replace_its_earlier_ones(saved: Path) -> None:
    first, second = (
        [
            summarise(name, [Outcome(name, 1, 1, True, 0, 0, True, (seconds,), 9.0)])
            for name in names
        ]
        for names, seconds in ((("disk full", "power cut"), 5.0), (("power cut",), 7.0))
    )
    for found in (first, second):
        results.write_campaign(results.merge("embedded", "rumqttd", found, forked=True))
    rows = results.read_campaign("embedded").rows
    assert [(row.scenario, row.recovery_s) for row in rows] == [
        ("disk full", 5.0),
        ("power cut", 7.0),
    ]
    assert all(row.forked and row.taken for row in rows)
    (saved / "embedded.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a result"):
        results.read_campaigns()


def test_the_table_says_why_a_broker_lacks_a_scenario(saved: Path) -> None:
    found = [summarise("disk full", [Outcome("disk full", 1, 1, True, 0, 0, True, (5.0,), 9.0)])]
    results.write_campaign(results.merge("embedded", "rumqttd", found, forked=False))
    lines = list(list_faults())
    assert any(line.startswith("| disk full | 1 | 0 | 0 | 1 of 1 | 5.0 |") for line in lines)
    (row,) = [line for line in lines if line.startswith("| broker killed |")]
    assert LEFT_OUT["broker killed"]["embedded"] in row
    (row,) = [line for line in lines if line.startswith("| power cut |")]
    assert "not run yet" in row


def test_every_run_has_its_own_seed() -> None:
    assert len(
        {
            derive_seed(seed, name, number)
            for seed in range(3)
            for name in SCENARIOS
            for number in range(10)
        }
    ) == 30 * len(SCENARIOS)


def test_each_scenario_is_possible_on_a_kind_of_broker() -> None:
    assert {name for kind in KINDS for name in list_scenarios(kind)} == set(SCENARIOS)


@pytest.mark.broker
@needs_mosquitto
@pytest.mark.parametrize(
    ("version", "usable"), [("2.9.10", False), ("2.14.9", False), ("2.15.1", True), ("", False)]
)
def test_a_server_of_nats_that_may_not_survive_a_kill_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, usable: bool
) -> None:
    server = tmp_path / "nats-server"
    server.write_text(f"#!/bin/sh\necho nats-server: v{version}\n")
    server.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # it looks beside it first
    missing = find_missing("nats")
    if usable:
        assert missing == ""
        assert describe_broker("nats") == f"NATS {version}"
    else:
        assert missing.startswith(f"nats-server 2.15 or newer ({server} is ")
        assert version in missing
        with pytest.raises(FleetError, match=r"2\.15 or newer"):
            describe_broker("nats")


def test_a_lost_run_says_why_the_broker_refused_its_agents(tmp_path: Path) -> None:
    port = find_free_port("127.0.0.1", 0)
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous false"]
    with run_mosquitto(tmp_path / "closed.conf", lines, port):
        fleet = RawFleet("run", ("a0", "a1"), ("127.0.0.1", port), Raw())
        until = time.monotonic() + 30
        while not fleet.describe_refusals() and time.monotonic() < until:
            fleet.turn(0.02)
        fleet.close()
    assert fleet.describe_refusals() == "\nrefused agents: the broker: Not authorized"


def scenario(name: str) -> object:
    marks = [
        pytest.mark.broker,
        pytest.mark.processes,
        pytest.mark.slow,
        pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed"),
    ]
    if name in ROOT_ONLY:
        marks.append(
            pytest.mark.skipif(
                os.geteuid() != 0, reason="needs root: a file system, or a network namespace"
            )
        )
    why = explain_impossible(name)
    marks.append(pytest.mark.skipif(bool(why), reason=why or "possible"))
    return pytest.param(name, marks=marks)


@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["bridge", "nats"],  # RabbitMQ takes minutes to start on a busy machine
)
def test_a_run_survives_a_kill_of_another_broker(tmp_path: Path, kind: str) -> None:
    if missing := find_missing(kind):
        pytest.skip(f"{missing} is not installed")
    name = "broker killed"
    found = run_trial(name, SCENARIOS[name], tmp_path / "run", 7, kind, forked=True)
    assert (found.survived, found.lost, found.doubled, found.equal) == (True, 0, 0, True), found.why


@pytest.mark.parametrize("name", [scenario(name) for name in REAL])
def test_no_update_is_lost_or_folded_twice(tmp_path: Path, name: str) -> None:
    found = run_trial(name, SCENARIOS[name], tmp_path / "run", 7, forked=True)
    assert found.injected, found.why
    assert (found.survived, found.lost, found.doubled, found.equal) == (True, 0, 0, True), found.why
