"""An engine exchanges releases while it answers, keeps the last good one, and resumes it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edge_agent.infer import engine as engines
from edge_agent.infer import release_state
from edge_agent.infer.engine import Counts, Engine
from export import release_reader
from federated.errors import DataError, ExportError, StoreError
from tests.support.handmade_releases import GRAPH, field
from tests.support.handmade_variants import NAME, several

X = np.array([[2, 1], [0, 0]], np.uint8)


def release(folder: Path, number: int, **changes: object) -> Path:
    """Return a different version for each number."""
    return several(folder / f"r{number}", ("fp32",), padding=bytes([number]), **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.infer.graph_trial.SECONDS", 0.02)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_engine_answers_with_adopted_release(tmp_path: Path, store: Path) -> None:
    engine = Engine(store, threads=1)
    with pytest.raises(ExportError, match="no release has arrived yet"):
        engine.answer(X)
    choice = engine.adopt(release(tmp_path, 1), NAME)
    found = engine.answer(X)
    assert found.choice == choice == engine.choice
    assert [one["label"] for one in found.answers] == [0, 0]
    assert engine.counts == Counts(2, 0)
    assert engine.past is None


def test_exchange_measures_the_previous_release(tmp_path: Path, store: Path) -> None:
    engine = Engine(store, threads=1, held=(X, np.array([0, 1])))
    old = engine.adopt(release(tmp_path, 1), NAME)
    new = engine.adopt(release(tmp_path, 2), NAME)
    assert new.version != old.version
    assert engine.past is not None
    assert (engine.past.version, engine.past.accuracy) == (old.version, 0.5)
    assert engine.past.p90 > 0
    assert new.best.accuracy == 0.5


def test_failing_release_keeps_the_present_one(tmp_path: Path, store: Path) -> None:
    engine = Engine(store, threads=1)
    good = engine.adopt(release(tmp_path, 1), NAME)
    with pytest.raises(ExportError, match="deviates from the exporter's machine"):
        engine.adopt(release(tmp_path, 2, off={"fp32": 5.0}), NAME)
    assert engine.choice == good
    assert engine.answer(X).choice == good
    resumed = Engine(store, threads=1).resume()
    assert resumed is not None
    assert resumed.version == good.version


def test_folder_of_another_version_is_refused(tmp_path: Path, store: Path) -> None:
    with pytest.raises(ExportError, match="expected version 0123456789ab, found"):
        Engine(store).adopt(release(tmp_path, 1), NAME, "0123456789ab")


def test_requests_continue_during_exchanges(tmp_path: Path, store: Path) -> None:
    """Both releases choose class 0 for (2, 1); one names it cats, the other dogs."""
    folders = [
        release(tmp_path, 1, classes=("cat", "-")),
        release(tmp_path, 2, classes=("dog", "-")),
    ]
    names = dict(
        zip(
            (release_reader.read_version(folder) for folder in folders), ("cat", "dog"), strict=True
        )
    )
    engine = Engine(store, threads=1)
    engine.adopt(folders[0], NAME)
    seen: list[tuple[str, str]] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                found = engine.answer(X[:1])
                seen.append((found.choice.version, found.answers[0]["name"]))
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(5):
        engine.adopt(folders[(number + 1) % 2], NAME)
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert {version for version, _ in seen} == names.keys()
    assert all(names[version] == name for version, name in seen)


def test_restart_resumes_last_good_release(tmp_path: Path, store: Path) -> None:
    engine = Engine(store, threads=1)
    first = engine.adopt(release(store, 1), NAME)
    second = engine.adopt(release(store, 2), NAME)
    resumed = Engine(store, threads=1).resume()
    assert resumed is not None
    assert resumed.version == second.version
    moved = shutil.move(store, tmp_path / "elsewhere")
    (moved / "r2" / f"{NAME}.fp32.onnx").write_bytes(b"damaged")
    resumed = Engine(moved, threads=1).resume()
    assert resumed is not None
    assert resumed.version == first.version
    (moved / "r1" / f"{NAME}.fp32.onnx").write_bytes(b"damaged")
    with pytest.raises(
        ExportError,
        match=r"cannot resume any earlier release: .*expected sha256.*; .*expected sha256",
    ):
        Engine(moved, threads=1).resume()


def test_engine_without_store_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = release(tmp_path, 1)
    Engine(None, threads=1).adopt(folder, NAME)
    assert [path.name for path in tmp_path.iterdir()] == ["r1"]
    assert Engine(None).resume() is None


def test_damaged_state_file_is_ignored(store: Path) -> None:
    assert Engine(store).resume() is None
    store.mkdir()
    (store / "current.json").write_bytes(b"{")
    assert Engine(store).resume() is None


def test_saved_choice_is_not_measured_again(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.infer.graph_choice.BUSY", 2.0)  # also on a busy machine
    folder = release(tmp_path, 1)
    first = Engine(store, threads=1).adopt(folder, NAME)
    monkeypatch.setattr(
        "edge_agent.infer.graph_trial._time_session", lambda *_: pytest.fail("it was timed again")
    )
    assert Engine(store, threads=1).adopt(folder, NAME) == first
    assert Engine(None, threads=1).adopt(folder, NAME) == first


def test_crashing_release_is_not_tested_a_third_time(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    folder = release(tmp_path, 1)

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(engines, "choose", die)
        # a process that is killed clears nothing up
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        for _ in range(2):
            with pytest.raises(Killed):
                Engine(store, threads=1).adopt(folder, NAME)
    with pytest.raises(
        ExportError,
        match=r"the process crashed 2 times .*; remove .*trying\.json to try again",
    ):
        Engine(store, threads=1).adopt(folder, NAME)
    Engine(store, threads=1).adopt(release(tmp_path, 2), NAME)  # another one is
    release_state.clear_trial(store)
    assert Engine(store, threads=1).adopt(folder, NAME).submodel == NAME


def test_unwritable_store_keeps_the_present_release(tmp_path: Path, store: Path) -> None:
    engine = Engine(store, threads=1)
    good = engine.adopt(release(tmp_path, 1), NAME)
    (store / "current.json").unlink()
    (store / "current.json").mkdir()
    with pytest.raises(StoreError, match=r"current\.json: cannot be written"):
        engine.adopt(release(tmp_path, 2), NAME)
    assert engine.choice == good


def test_unwritable_store_does_not_prevent_resume(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = release(tmp_path, 1), release(tmp_path, 2)
    engine = Engine(store, threads=1)
    old, new = engine.adopt(first, NAME), engine.adopt(second, NAME)

    def full(path: Path, value: object) -> None:
        raise StoreError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(release_state, "_write", full)
    again = Engine(store, threads=1).resume()
    assert again is not None
    assert again.version == new.version
    shutil.rmtree(second)
    again = Engine(store, threads=1).resume()
    assert again is not None
    assert again.version == old.version


def test_errors_hide_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(None, threads=1)
    engine.adopt(release(tmp_path, 1), NAME)
    assert engine.session is not None
    where = engine.session.name

    def refuse(*_: object) -> None:
        raise DataError(f"{where}: expected tokens 0 to 7, found 9")

    def fail(*_: object) -> None:
        raise ExportError(f"{where}: expected a finite output")

    monkeypatch.setattr(engines, "answer", refuse)
    with pytest.raises(DataError, match=r"^question 1: expected tokens 0 to 7, found 9$"):
        engine.answer(X, "question 1")
    monkeypatch.setattr(engines, "answer", fail)
    with pytest.raises(
        ExportError,
        match=rf"^version [0-9a-f]{{12}} failed: {NAME}\.fp32\.onnx: expected a finite output$",
    ):
        engine.answer(X)


def test_single_graph_answers_without_a_test(tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    path.write_bytes(GRAPH.read_bytes() + field(b"x"))
    engine = Engine(None)
    choice = engine.open(path)
    assert (choice.run, choice.round, choice.submodel, choice.best.kind) == (
        "spring",
        7,
        "w1-d1",
        "file",
    )
    assert engine.answer(X[0]).answers == [
        {"label": 0, "confidence": pytest.approx(0.9526, abs=1e-4)}
    ]


def test_invalid_requests_are_not_counted_as_failures(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(store, threads=1)
    engine.adopt(release(tmp_path, 1), NAME)
    with pytest.raises(
        DataError, match=r"the request: expected raw examples of shape \[n, 2\], found \[1, 3\]"
    ):
        engine.answer(np.zeros((1, 3)))
    with pytest.raises(DataError, match="expected at most 1 examples at a time, found 2"):
        engine.answer(X, most=1)
    assert engine.counts == Counts(0, 0)

    def fail(*_: object) -> None:
        raise RuntimeError("the device went away")

    monkeypatch.setattr(engines, "answer", fail)
    with pytest.raises(ExportError, match="failed: the device went away"):
        engine.answer(X)
    assert engine.counts == Counts(0, 1)
