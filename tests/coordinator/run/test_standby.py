"""A standby coordinator waits for the run's lock, or takes it away from one that hangs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.observe.round_records import RoundRecord
from coordinator.round.round_events import Ticked
from coordinator.round.round_state import Round
from coordinator.run import run_preparation, standby
from coordinator.run.standby import check_standby, displace, wait_to_lead
from coordinator.settings.config import Config
from coordinator.settings.config_tables import Data
from coordinator.settings.service_tables import Broker
from coordinator.store import run_lock, run_store, tensor_files
from coordinator.store.control_requests import Stopped
from coordinator.store.journal import Base
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total
from federated.errors import StoreError, Superseded, UsageError
from federated.wire import topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.memory_federation import RUN, Member, digits, federate


def done(number: int, value: float = 0.0) -> RoundRecord:
    return RoundRecord(number, 1.0, {"w": torch.full((3,), value)}, {}, [], [], 0, 0)


def ignore() -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return start(tmp_path)


def start(root: Path) -> Store:
    """Return a run with a finished round and an event of the next one."""
    store = Store.create(root, "r")
    store.journal.begin(Base("", Round()))
    store.save(done(1), Round())
    store.journal.append(Ticked(1.0))
    store.journal.sync()
    return store


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a run's files, without the index that SQLite rebuilds."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith("-shm")
    }


def wait_for_sign(folder: Path) -> None:
    """Wait until the coordinator gives its next sign of life."""
    now = run_lock.read_sign(folder)
    while run_lock.read_sign(folder) == now:
        pass


@pytest.mark.parametrize(
    ("config", "missing"),
    [(Config(broker=Broker(url="h")), "--name"), (Config(name="r"), "--broker")],
)
def test_a_standby_needs_a_name_and_a_broker(config: Config, missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        check_standby(config)


def test_a_standby_of_a_missing_run_fails(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 'r'"):
        wait_to_lead(tmp_path / "r", 1.0, ignore)


def test_a_standby_waits_while_the_lock_is_held_and_renewed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is over long before the coordinator ends."""
    monkeypatch.setattr(run_lock, "RENEWAL", 0.0)
    monkeypatch.setattr(standby, "POLL", 0.001)
    looks = list[int]()

    def look() -> None:
        looks.append(1)
        wait_for_sign(store.folder)
        if len(looks) == 20:
            store.check_lock()
            store.close()

    with run_lock.renewing(store._lock or 0, store.folder):
        assert wait_to_lead(store.folder, 0.0, look)
    assert len(looks) == 20
    assert not run_lock.is_held(store.folder)


@pytest.mark.parametrize("end", [None, Stopped("stopped at once"), KeyboardInterrupt()])
def test_a_standby_takes_over_unless_the_run_ended(
    store: Store, end: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that is interrupted ends, but not the run."""
    monkeypatch.setattr(standby, "POLL", 0.001)

    def finish() -> None:
        with suppress(Stopped, KeyboardInterrupt), store.leading():
            if end is not None:
                raise end
        store.close()

    assert wait_to_lead(store.folder, math.inf, finish) == isinstance(end, KeyboardInterrupt)
    Store.open(store.folder.parent, "r").close()
    assert wait_to_lead(store.folder, math.inf, ignore), "someone may resume an ended run"


def test_a_standby_of_a_run_that_is_deleted_meanwhile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "POLL", 0.001)
    store = Store.create(tmp_path, "r")
    with pytest.raises(StoreError, match="run 'r' was deleted"):
        wait_to_lead(store.folder, math.inf, lambda: store.close(discard=True))


def test_an_unfinished_lock_of_a_killed_standby_is_removed(store: Store) -> None:
    left = store.folder / "lock.0a1b2c.part"
    left.touch()
    store.close()
    Store.open(store.folder.parent, "r").close()
    assert not left.exists()


def test_a_standby_whose_unfinished_lock_is_removed_by_another_coordinator_gives_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_first(handle: int, *, wait: bool) -> None:
        for part in store.folder.glob("*.part"):
            part.unlink()

    monkeypatch.setattr(run_lock, "lock_file", remove_first)
    with pytest.raises(Superseded, match="another coordinator opened run 'r'"):
        run_lock.replace(store.folder)
    store.check_lock()
    store.close()


def test_a_standby_takes_over_from_a_coordinator_without_signs_of_life(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "POLL", 0.001)
    assert wait_to_lead(store.folder, 0.01, ignore)
    with pytest.raises(Superseded, match="took over run 'r'"):
        store.check_lock()
    later = Store.open(store.folder.parent, "r")
    assert later.next_epoch(0.0) > 0
    assert later.rounds_done == 1
    store.close(discard=True)
    later.check_lock()
    later.close()


def test_a_coordinator_gives_signs_of_life_while_it_checks_files_and_settings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may take longer than the lease."""
    monkeypatch.setattr(run_lock, "RENEWAL", 0.0)
    store.close()
    for owner, name in ((run_store, "open_intact"), (run_preparation, "check_config")):
        monkeypatch.setattr(owner, name, wait_before(getattr(owner, name), store.folder))
    config = Config(name="r", data=Data(name="digits"))
    prepared = run_preparation.prepare(config, store.folder.parent, resume=True)
    assert "lock" not in {thread.name for thread in threading.enumerate()}
    prepared.close()


def wait_before(call: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def wrapped(*arguments: Any) -> Any:
        wait_for_sign(folder)
        return call(*arguments)

    return wrapped


def test_of_two_standbys_the_later_one_takes_over_and_the_other_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "POLL", 0.001)
    later, copy = list[Store](), standby.replace_by_copy

    def lose(path: Path, lock: int) -> None:
        monkeypatch.setattr(standby, "replace_by_copy", copy)
        displace(store.folder)
        later.append(Store.open(store.folder.parent, "r"))
        copy(path, lock)

    def finish() -> None:
        for one in later:
            with one.leading():
                pass
            one.close()

    monkeypatch.setattr(standby, "replace_by_copy", lose)
    assert not wait_to_lead(store.folder, 0.01, finish)
    assert later
    assert not list(store.folder.glob("*.part"))
    store.close()


WRITES: dict[str, Callable[[Store], object]] = {
    "a round": lambda store: store.save(done(store.rounds_done + 1, 1.0), Round()),
    "a segment": lambda store: store.journal.begin(Base(store.checkpoint_id, Round())),
    "an event": lambda store: store.journal.append(Ticked(2.0)),
    "a total": lambda store: store.journal.write_total("total-1", Total()),
    "removals": lambda store: store.journal.sweep(),
    "its start": lambda store: store.next_session(),
    "a database": lambda store: store.agents.mark_asked(1, "a", "selected as a replacement"),
}


class Pause:
    """Stops a coordinator at a moment of a write, while a standby takes over and continues the run.

    Moments are those before a file is opened, moved or removed, and those after a check of the
    lock. finishes: the standby finishes a round. later: its store, once the moment has come.
    before: the files that it left.
    """

    def __init__(self, root: Path, moment: int, *, finishes: bool) -> None:
        self.root, self.moment, self.finishes, self.moments = root, moment, finishes, 0
        self.later: Store | None = None
        self.before = dict[str, bytes]()

    def pass_moment(self) -> None:
        self.moments += 1
        if self.moments == self.moment:
            displace(self.root / "r")
            self.later = later = Store.open(self.root, "r")
            later.journal.resume(later.checkpoint_id)
            if self.finishes:
                later.save(done(later.rounds_done + 1, 2.0), Round())
            later.journal.append(Ticked(3.0))
            self.before = read_files(later.folder)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in ((Path, "open"), (Path, "replace"), (Path, "unlink")):
                patch.setattr(owner, name, self._wrap(getattr(owner, name), first=True))
            patch.setattr(run_lock, "check", self._wrap(run_lock.check, first=False))
            yield

    def _wrap(self, call: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if first:
                self.pass_moment()
            result = call(*arguments, **options)
            if not first:
                self.pass_moment()
            return result

        return wrapped


@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("what", WRITES)
def test_a_coordinator_that_stopped_in_a_write_changes_nothing_when_it_wakes_up(
    tmp_path: Path, what: str, finishes: bool
) -> None:
    """It stops at each moment of the write in turn."""
    for moment in range(1, 100):
        root = tmp_path / str(moment)
        earlier, pause = start(root), Pause(root, moment, finishes=finishes)
        with pause.watching(), suppress(StoreError, Superseded):
            WRITES[what](earlier)
        if (later := pause.later) is None:
            earlier.close()
            assert moment > 1, "it checks its lock"
            return
        assert read_files(root / "r") == pause.before
        earlier.close(discard=True)
        assert read_files(root / "r") == pause.before
        later.save(done(later.rounds_done + 1, 3.0), Round())
        later.close()
        again = Store.open(root, "r")
        last = again.read_last()
        assert last is not None
        assert torch.equal(last.tensors["w"], torch.full((3,), 3.0))
        assert again.journal.resume(again.checkpoint_id) is not None
        again.close()
    pytest.fail("it never finishes")


def test_a_coordinator_that_misses_a_file_which_a_standby_removed_leaves_the_run_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended while it wrote the file. Agents still find the run."""
    broker, later = MemoryBroker(), list[Store]()

    def take_over(part: Path) -> None:
        monkeypatch.undo()
        displace(part.parent)
        later.append(Store.open(tmp_path / "runs", RUN))

    monkeypatch.setattr(tensor_files, "begin_sync", take_over)
    with pytest.raises(Superseded, match=f"took over run '{RUN}'"):
        federate(tmp_path, [Member("a", digits(0, 1))], {"train.steps": 1}, broker=broker)
    later[0].close()
    agent = MemoryLink(broker, "b")
    agent.subscribe(topics.run(RUN))
    card = agent.receive(0)
    assert card is not None
    assert card.payload
