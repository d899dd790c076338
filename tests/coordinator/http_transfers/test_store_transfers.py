"""Weights and updates travel through a store that checks signatures, and what is put there counts
only if it is what the coordinator permitted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

pytest.importorskip("botocore")

from benchmarks.faults.parts.object_store import BUCKET, CREDENTIALS, Way, run_store
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_reception import Intake
from coordinator.http_transfers import (
    store_thread,
    store_transfers,
    stored_updates,
    stored_weights,
)
from coordinator.http_transfers.configured_transfers import open_transfers
from coordinator.http_transfers.object_store import Bucket, ObjectStore, StoreFailure
from coordinator.http_transfers.store_transfers import StoreTransfers, check_store, parse_bucket
from coordinator.http_transfers.stored_updates import FAILURES, SMALLEST, STRAY, StoredUpdates
from coordinator.http_transfers.stored_weights import StoredWeights
from coordinator.settings.config import load
from coordinator.store import run_lock
from federated.errors import ConfigError
from federated.http_transfers import http_client
from federated.http_transfers.http_client import HttpAccess, HttpTransfer
from federated.http_transfers.http_download import HttpDownload
from federated.http_transfers.http_upload import PartUpload
from federated.wire import messages
from federated.wire.chunks import split
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.coordinator.http_transfers.test_http_run import SETTINGS, Recorder, train
from tests.support.manual_clock import Clock
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.object_stores import needs_store
from tests.support.scripted_agent import Folding, ScriptedAgent, begin_phase, listen, task
from tests.support.scripted_coordinator import CARD
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, needs_store]

DATA = bytes(range(256)) * (SMALLEST // 256 * 3 + 100)  # three parts and a short one
DIGEST = hashlib.sha256(DATA).hexdigest()
PLACE = PurePosixPath("round-000001/0123456789abcdef.update.part")
OTHER = PurePosixPath("round-000001/fedcba9876543210.update.part")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_store(tmp_path_factory.mktemp("store")) as server:
        yield server.endpoint


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(http_client, "LONGEST_WAIT", 0.2)
    monkeypatch.setattr(store_thread, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(store_thread, "LONGEST_WAIT", 0.2)
    monkeypatch.setattr(stored_updates, "LOOK", 0.05)
    monkeypatch.setattr(stored_updates, "STRAY_LOOK", 0.05)


def is_leading() -> bool:
    return True


def open_store(endpoint: str, tmp_path: Path) -> ObjectStore:
    """Open a part of the bucket that no other test uses."""
    return ObjectStore(Bucket(BUCKET, f"{tmp_path.name}/", endpoint))


@pytest.fixture
def store(endpoint: str, tmp_path: Path) -> ObjectStore:
    return open_store(endpoint, tmp_path)


def end(transfer: HttpTransfer) -> HttpTransfer:
    transfer.start()
    eventually(lambda: not transfer.running)
    transfer.stop()
    return transfer


class Update:
    """The file of an expected update, and its offer."""

    def __init__(self, spool: Path, data: bytes = DATA, place: PurePosixPath = PLACE) -> None:
        self.manifest, self.path = split(data, 2**18, "t"), spool / place
        self.path.parent.mkdir(exist_ok=True)
        self.path.touch()

    def read(self) -> bytes:
        return self.path.read_bytes()


def send(grant: messages.Grant, parts: slice = slice(None), data: bytes = DATA) -> HttpTransfer:
    """Upload some of the granted parts, as an agent does."""
    view = memoryview(data)
    pieces = {one.url: view[one.start : one.start + one.size] for one in grant.parts[parts]}
    return end(PartUpload(HttpAccess(), pieces, "w1"))


def test_the_store_is_tried_before_a_run(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    check_store(store, signed=True)
    assert not caplog.records, "it checks the sizes of uploads"
    assert not store.list("")


def test_weights_are_downloaded_at_a_signed_address_until_they_are_withdrawn(
    store: ObjectStore, tmp_path: Path
) -> None:
    (spool := tmp_path / "spool").mkdir()
    (spool / f"{DIGEST}.weights").write_bytes(DATA)
    store.put("weights/old", spool / f"{DIGEST}.weights")  # of a coordinator that crashed
    with closing(StoredWeights(store, spool, 60, is_leading)) as weights:
        url = eventually(lambda: weights.find(DIGEST))
        assert list(store.list("")) == [f"weights/{DIGEST}"]
        (part := tmp_path / "part").write_bytes(DATA[:1_000_000])
        assert end(HttpDownload(HttpAccess(), url, part, DIGEST, len(DATA))).complete
        assert part.read_bytes() == DATA
        forged = url.replace(f"weights/{DIGEST}", "weights/other")
        failed = end(HttpDownload(HttpAccess(), forged, tmp_path / "p", DIGEST, len(DATA)))
        assert "403" in str(failed.failure)
        weights.withdraw(DIGEST)
        eventually(lambda: not store.list(""))


def test_weights_that_the_store_lost_are_stored_again_while_they_are_needed(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_weights, "LOOK", 0.1)
    (tmp_path / f"{DIGEST}.weights").write_bytes(DATA)
    with closing(StoredWeights(store, tmp_path, 60, is_leading)) as weights:
        eventually(lambda: weights.find(DIGEST))
        store.delete([f"weights/{DIGEST}"])
        assert eventually(lambda: store.list("")) == {f"weights/{DIGEST}": len(DATA)}
        weights.withdraw(DIGEST)
        eventually(lambda: not store.list(""))


def test_an_outage_of_the_store_is_noticed_and_ends(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while there is nothing to put there, as long as agents may need it."""
    monkeypatch.setattr(store_transfers, "LOOK", 0.05)
    (tmp_path / f"{DIGEST}.weights").write_bytes(DATA)
    with closing(Way(endpoint)) as way:
        store = open_store(way.endpoint, tmp_path)
        with closing(StoreTransfers(store, tmp_path, 0, 60)) as transfers:
            eventually(lambda: transfers.find_weights(DIGEST))
            assert not transfers.lost
            way.break_down()
            assert "503" in eventually(lambda: transfers.lost)
            way.away = False
            eventually(lambda: not transfers.lost)


def test_a_part_that_nobody_can_read_is_sent_again(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed after some attempts. Meanwhile other updates are collected."""
    unreadable, update, read = Update(tmp_path), Update(tmp_path, place=OTHER), ObjectStore.read
    refusals = iter([True] * FAILURES)

    def refuse_some(store: ObjectStore, key: str) -> Iterator[bytes]:
        if str(PLACE) in key and next(refusals, False):
            raise StoreFailure("AccessDenied")
        return read(store, key)

    monkeypatch.setattr(ObjectStore, "read", refuse_some)
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        send(updates.grant(PLACE, unreadable.manifest))
        send(updates.grant(OTHER, update.manifest))
        eventually(lambda: update.read() == DATA)

        def send_missing() -> bool:
            if parts := (grant := updates.grant(PLACE, unreadable.manifest)).parts:
                send(grant)
            return not parts and unreadable.read() == DATA

        eventually(send_missing)


def test_the_address_of_weights_is_renewed_before_it_expires(
    store: ObjectStore, tmp_path: Path
) -> None:
    clock = Clock()
    (tmp_path / f"{DIGEST}.weights").write_bytes(DATA)
    with closing(StoredWeights(store, tmp_path, 60, is_leading, clock)) as weights:
        url = eventually(lambda: weights.find(DIGEST))
        clock.now += 29
        assert weights.find(DIGEST) == url
        clock.now += 2
        # the signature contains the time in whole seconds
        assert eventually(lambda: weights.find(DIGEST)).startswith(url.partition("?")[0])
        assert weights._wanted[DIGEST].renewed == clock.now + 30


def test_an_update_is_collected_part_by_part(store: ObjectStore, tmp_path: Path) -> None:
    update = Update(tmp_path)
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        grant = updates.grant(PLACE, update.manifest)
        starts = [(one.start, one.size) for one in grant.parts]
        assert starts == [(i * SMALLEST, SMALLEST) for i in range(3)] + [(3 * SMALLEST, 25_600)]
        assert send(grant).complete
        eventually(lambda: update.read() == DATA)
        eventually(lambda: not store.list(""))


def test_an_upload_continues_with_the_parts_that_are_missing(
    store: ObjectStore, tmp_path: Path
) -> None:
    update = Update(tmp_path)
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        send(updates.grant(PLACE, update.manifest), slice(2))
        eventually(lambda: len(update.read()) == 2 * SMALLEST)
    with update.path.open("ab") as file:
        file.write(b"of a part that a killed coordinator began")
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:  # the next process
        grant = updates.grant(PLACE, update.manifest)
        assert [one.start for one in grant.parts] == [2 * SMALLEST, 3 * SMALLEST]
        send(grant, slice(1, None))
        eventually(lambda: updates._expected[PLACE].seen == {3})
        again = updates.grant(PLACE, update.manifest)
        assert [one.start for one in again.parts] == [2 * SMALLEST], "the last one is there"
        send(again)
        eventually(lambda: update.read() == DATA)


def test_an_expired_address_is_refused_and_the_next_grant_has_another(
    store: ObjectStore, tmp_path: Path
) -> None:
    update = Update(tmp_path)
    with closing(StoredUpdates(store, tmp_path, 1, is_leading)) as updates:
        old = updates.grant(PLACE, update.manifest)
        eventually(lambda: "403" in str(send(old, slice(1)).failure))
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        assert send(updates.grant(PLACE, update.manifest)).complete
        eventually(lambda: update.read() == DATA)


def test_an_address_permits_one_size(store: ObjectStore, tmp_path: Path) -> None:
    update = Update(tmp_path)
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        (first, *_) = updates.grant(PLACE, update.manifest).parts
        for size in (first.size + 1, first.size - 1):
            tried = end(PartUpload(HttpAccess(), {first.url: memoryview(bytes(size))}, "w1"))
            assert "403" in str(tried.failure)
    assert not store.list("")


def test_a_part_of_another_size_is_removed(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some stores do not check the size that they signed."""
    update = Update(tmp_path)
    (large := tmp_path / "large").write_bytes(bytes(SMALLEST + 1))
    with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
        grant = updates.grant(PLACE, update.manifest)
        key = updates._expected[PLACE].name(0)
        store.put(key, large)
        eventually(lambda: f"removed {key}" in caplog.text)
        assert send(grant).complete
        eventually(lambda: update.read() == DATA)
    assert not store.list("")


def test_what_nobody_expects_is_removed(store: ObjectStore, tmp_path: Path) -> None:
    update, clock = Update(tmp_path), Clock()
    with closing(StoredUpdates(store, tmp_path, 60, is_leading, clock)) as updates:
        grant = updates.grant(PLACE, update.manifest)
        update.path.unlink()  # the task was given up
        eventually(lambda: not updates._expected)
        send(grant)
        kept = Update(tmp_path, DATA * 2)
        updates.grant(PLACE, kept.manifest)
        eventually(lambda: len(updates._strays) == 4)
        clock.now += STRAY
        eventually(lambda: not store.list(""))
        assert kept.read() == b""


def test_work_goes_on_when_the_store_is_back(
    endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    update = Update(tmp_path)
    with closing(Way(endpoint)) as way:
        store = open_store(way.endpoint, tmp_path)
        with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as updates:
            grant = updates.grant(PLACE, update.manifest)
            way.break_down()
            eventually(lambda: "503" in caplog.text)
            view = memoryview(DATA)
            pieces = {one.url: view[one.start : one.start + one.size] for one in grant.parts}
            upload = PartUpload(HttpAccess(), pieces, "w1")
            upload.start()
            eventually(lambda: "answers 503" in caplog.text)
            way.away = False
            eventually(lambda: upload.complete)
            eventually(lambda: update.read() == DATA)


def refuse(settings: dict[str, str], folder: Path) -> str:
    config = load(None, {}, [("name", "r"), *settings.items()])
    with pytest.raises(ConfigError) as caught, open_transfers(config, folder, print):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"http.store": "s3://missing"}, "NoSuchBucket.*create the bucket, or correct http.store"),
        ({"http.store": f"s3://{BUCKET}", "secret": "wrong"}, "correct the credentials"),
        ({"http.store": f"s3://{BUCKET}", "id": "WRONG"}, "InvalidAccessKeyId"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_at_the_start(
    settings: dict[str, str],
    why: str,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if secret := settings.pop("secret", ""):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if name := settings.pop("id", ""):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
    assert re.search(why, refuse({**settings, "http.endpoint": endpoint}, tmp_path))


def test_a_run_through_a_store_equals_one_over_mqtt(endpoint: str, tmp_path: Path) -> None:
    store, broker = open_store(endpoint, tmp_path), Recorder()
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    spool = tmp_path / "stored" / "runs" / RUN / "spool"
    with closing(StoreTransfers(store, spool, 0, 60)) as transfers:
        one = federate(tmp_path / "stored", members, SETTINGS, broker=broker, urls=transfers)
        eventually(lambda: not store.list(""))
    other = train(tmp_path / "mqtt", Recorder(), None)
    assert one.result.scores == other.result.scores
    assert one.result.bytes_up == pytest.approx(other.result.bytes_up, rel=0.1)
    assert one.result.bytes_down == pytest.approx(other.result.bytes_down, rel=0.1)
    assert not [topic for topic in broker.topics if "/c/" in topic]


def test_an_update_with_another_digest_is_refused_and_its_agent_told(
    store: ObjectStore, tmp_path: Path
) -> None:
    memory, clock = MemoryBroker(), Clock()
    with closing(StoreTransfers(store, tmp_path, 100, 60)) as transfers:
        fleet = MessageLoop(
            MemoryLink(memory, "coordinator"), CARD, tmp_path, Intake(urls=transfers), clock=clock
        )
        fleet.endpoint.announce()
        agent = ScriptedAgent(memory, "a")
        listen(fleet)
        made = task("a")
        fleet.driver.begin(begin_phase(fleet, [made]), Folding())
        listen(fleet)
        agent.heard()
        data = DATA[:5000]
        manifest = split(data, 2**18, "t")

        def offer() -> list[messages.Message]:
            agent.say(
                messages.Offer(
                    manifest, "r", made.round, made.attempt, made.work, made.submodel.name
                )
            )
            listen(fleet)
            return agent.heard()

        def turn() -> list[messages.Message]:
            clock.now += 0.5
            listen(fleet)
            return agent.heard()

        (grant,) = offer()
        assert isinstance(grant, messages.Grant)
        assert send(grant, data=bytes(5000)).complete
        (refusal,) = eventually(turn)
        assert isinstance(refusal, messages.Refusal)
        assert "expected sha256" in refusal.reason
        (again,) = offer()
        assert isinstance(again, messages.Grant)
        assert [one.start for one in again.parts] == [0]


@pytest.mark.parametrize("above", [0, 100])
def test_an_update_that_is_replaced_in_the_store_again_and_again_comes_in_chunks(
    above: int, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone who may write to the bucket can do this, so it must not count against the agent."""
    memory, clock, folding = MemoryBroker(), Clock(), Folding()
    with closing(StoreTransfers(store, tmp_path, above, 60)) as transfers:
        fleet = MessageLoop(
            MemoryLink(memory, "coordinator"), CARD, tmp_path, Intake(urls=transfers), clock=clock
        )
        fleet.endpoint.announce()
        agent, made = ScriptedAgent(memory, "a"), task("a")
        listen(fleet)
        fleet.driver.begin(begin_phase(fleet, [made]), folding)
        offer, chunks = agent.make_update(made, {"w": np.zeros(200, np.float32)})

        def turn() -> list[messages.Message]:
            clock.now += 0.5
            listen(fleet)
            return agent.heard()

        for last in (False, False, True):
            agent.heard()
            agent.say(offer)
            (grant,) = turn()
            assert isinstance(grant, messages.Grant)
            assert send(grant, data=bytes(offer.manifest.size)).complete
            heard = eventually(turn)
            refusal = next(one for one in heard if isinstance(one, messages.Refusal))
            assert "The store held other bytes" in refusal.reason
            grants = [one for one in heard if isinstance(one, messages.Grant)]
            assert [(one.parts, one.open) for one in grants] == ([((), True)] if last else [])
        assert "check who else may write to it" in caplog.text
        agent.send_chunks(offer, chunks)
        heard = eventually(turn)
        assert messages.Receipt(offer.manifest.transfer, True) in heard
    assert [one.agent for one in folding.updates] == ["a"]


def test_an_address_that_cannot_be_signed_is_asked_for_again(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> str:
        raise StoreFailure("the credentials cannot be renewed")

    update = Update(tmp_path)
    with closing(StoreTransfers(store, tmp_path, 0, 60)) as transfers:
        monkeypatch.setattr(ObjectStore, "_sign", fail)
        grant = transfers.grant(PLACE, update.manifest)
        assert (grant.open, grant.parts) == (False, ())
        monkeypatch.undo()
        assert transfers.grant(PLACE, update.manifest).open


def test_a_displaced_coordinator_collects_and_removes_nothing_more(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Its main loop hangs, and the coordinator that took over collects into the same file."""
    update, lock = Update(tmp_path), run_lock.acquire(tmp_path)

    def leads() -> bool:
        return run_lock.is_present(lock, tmp_path)

    with closing(StoredUpdates(store, tmp_path, 60, leads)) as updates:
        grant = updates.grant(PLACE, update.manifest)
        send(grant, slice(1))
        eventually(lambda: len(update.read()) == SMALLEST and not store.list(""))
        successor = run_lock.replace(tmp_path)
        send(grant, slice(1, None))
        updates.grant(PLACE, update.manifest)  # wakes the thread
        eventually(lambda: not updates._thread._woken.is_set())
        assert len(update.read()) == SMALLEST
        assert len(store.list("")) == 3
        with closing(StoredUpdates(store, tmp_path, 60, is_leading)) as others:
            others.grant(PLACE, update.manifest)
            eventually(lambda: update.read() == DATA)
    for handle in (lock, successor):
        run_lock.release(handle)


def test_weights_stay_in_the_store_when_a_displaced_coordinator_withdraws_them(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / f"{DIGEST}.weights").write_bytes(DATA)
    leading = [True]
    with closing(StoredWeights(store, tmp_path, 60, lambda: leading[0])) as weights:
        eventually(lambda: weights.find(DIGEST))
        leading[0] = False
        weights.withdraw(DIGEST)
        eventually(lambda: not weights._thread._woken.is_set())
    assert list(store.list("")) == [f"weights/{DIGEST}"]


@pytest.mark.parametrize("displaced", [False, True])
def test_a_coordinator_that_is_interrupted_removes_only_its_own_objects(
    displaced: bool, endpoint: str, tmp_path: Path
) -> None:
    """The coordinator that took over the run needs them."""
    lock, folder = run_lock.acquire(tmp_path), tmp_path / "spool"
    settings = {"name": "r", "http.store": f"s3://{BUCKET}", "http.endpoint": endpoint}
    config = load(None, {}, [*settings.items()])
    store = ObjectStore(parse_bucket(config.http, "r"))
    source = tmp_path / "source"
    source.write_bytes(b"part")
    successor = None
    transfers = open_transfers(config, folder, print, lambda: run_lock.is_present(lock, tmp_path))
    with pytest.raises(KeyboardInterrupt), transfers:  # noqa: PT012  # ctrl-C inside
        store.put("updates/later", source)
        successor = run_lock.replace(tmp_path) if displaced else None
        raise KeyboardInterrupt
    assert list(store.list("")) == (["updates/later"] if displaced else [])
    for handle in (lock, successor):
        if handle is not None:
            run_lock.release(handle)
