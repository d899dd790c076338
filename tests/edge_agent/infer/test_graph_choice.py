"""A device tries every way to run a release, rejects wrong ones with a reason, and keeps the
fastest passing one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.infer import graph_choice as choosing
from edge_agent.infer import graph_trial
from edge_agent.infer.graph_choice import (
    Choice,
    choose,
    format_trials,
    list_providers,
    list_thread_counts,
    sample_own,
)
from edge_agent.infer.graph_trial import CPU, Trial, measure_session
from export import release_reader
from export.latency import Latency
from export.onnx_session import Session, load
from federated.errors import DataError, ExportError, Unknown
from tests.export.conftest import GIVEN, make_bytes, make_text
from tests.support.handmade_releases import GRAPH
from tests.support.handmade_variants import NAME, several

# the graph always says 0: right in 3 of 4
OWN = (np.array([[3, 1], [0, 2], [5, 0], [1, 1]], np.uint8), np.array([0, 0, 0, 1]))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replace measured timings with fixed ones by graph name; unlisted graphs take a
    millisecond.
    """
    took: dict[str, float] = {}

    def timed(session: Session, x: Any, fastest: float) -> Latency:
        seconds = took.get(Path(session.name).name, 0.001)
        return Latency(
            seconds, seconds, seconds, seconds, seconds, 3 if seconds > 2 * fastest else 50
        )

    monkeypatch.setattr(graph_trial, "_time_session", timed)
    return took


def test_fastest_passing_way_is_chosen(tmp_path: Path, quick: dict[str, float]) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0004
    _, found = choose(several(tmp_path), NAME, "v", threads=1)
    assert (found.best.kind, found.best.provider, found.best.threads) == ("int8-u8s8", CPU, 1)
    assert (found.run, found.round, found.submodel, found.version) == ("spring", 7, NAME, "v")
    assert [graph_trial.kind for graph_trial in found.trials] == ["fp32", "int8-u8s8"]


def test_fewest_threads_win_among_similar_speeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "list_thread_counts", lambda threads: (1, 4))
    times = iter((0.00102, 0.00100, 0.00101, 0.00099))
    monkeypatch.setattr(
        graph_trial, "_time_session", lambda *_: (lambda s: Latency(s, s, s, s, s, 50))(next(times))
    )
    _, found = choose(several(tmp_path), NAME, "v")
    assert (found.best.kind, found.best.threads) == ("fp32", 1)


def test_earlier_way_may_win_within_margin_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with one thread and two: the first is too slow once the last is known
    took = iter([0.00104, 0.00100, 0.00150, 0.00099])

    def timed(*_: object) -> Latency:
        seconds = next(took)
        return Latency(seconds, seconds, seconds, seconds, seconds, 50)

    monkeypatch.setattr(graph_trial, "_time_session", timed)
    monkeypatch.setattr(choosing, "list_thread_counts", lambda threads: (1, 2))
    session, found = choose(several(tmp_path), NAME, "v")
    assert (found.best.kind, found.best.threads, found.best.p90) == ("fp32", 2, 0.001)
    assert Path(session.name).name == f"{NAME}.fp32.onnx"


def test_deviating_graph_is_rejected_however_fast(tmp_path: Path, quick: dict[str, float]) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0001
    _, found = choose(several(tmp_path, off={"int8-u8s8": 0.5}), NAME, "v", threads=1)
    assert found.best.kind == "fp32"
    assert found.trials[1].reason == "deviates from the exporter's machine by 0.27, more than 0.1"
    assert "deviates from the exporter's machine" in format_trials(found)


def test_small_deviations_are_accepted(tmp_path: Path, quick: dict[str, float]) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0001
    # 0.05 of the spread; 0.0007 of 3
    _, found = choose(
        several(tmp_path, off={"int8-u8s8": 0.1, "fp32": 0.002}), NAME, "v", threads=1
    )
    assert found.best.kind == "int8-u8s8"
    with pytest.raises(
        ExportError,
        match=r"fp32 on CPU: deviates .* by 0\.0017, more than 0\.001",
    ):
        choose(several(tmp_path, off={"fp32": 0.005}), NAME, "v", threads=1)


def test_int8_that_lost_accuracy_in_the_release_is_rejected(
    tmp_path: Path, quick: dict[str, float]
) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0001
    _, found = choose(
        several(tmp_path, accuracy={"fp32": 0.90, "int8-u8s8": 0.88}), NAME, "v", threads=1
    )
    assert found.best.kind == "fp32"
    assert found.released == 0.90
    assert found.trials[1].reason == "its accuracy in the release is 0.880, that of fp32 0.900"
    _, found = choose(
        several(tmp_path, accuracy={"fp32": 0.90, "int8-u8s8": 0.895}), NAME, "v", threads=1
    )
    assert found.best.kind == "int8-u8s8"


def test_own_examples_can_reject_a_way(
    tmp_path: Path, quick: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0001
    _, found = choose(several(tmp_path), NAME, "v", threads=1, held=OWN)
    assert found.examples == 4
    assert [graph_trial.accuracy for graph_trial in found.trials] == [0.75, 0.75]
    scores = iter((0.75, 0.25))  # int8 is right in one of four
    monkeypatch.setattr(graph_trial, "_measure_accuracy", lambda *_: next(scores))
    _, found = choose(several(tmp_path), NAME, "v", threads=1, held=OWN)
    assert found.best.kind == "fp32"
    assert found.trials[1].reason == "loses 50.0 points of accuracy on this device's own examples"


def test_one_own_example_cannot_reject_a_way(
    tmp_path: Path, quick: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.0001
    scores = iter((0.75, 0.5))
    monkeypatch.setattr(graph_trial, "_measure_accuracy", lambda *_: next(scores))
    assert choose(several(tmp_path), NAME, "v", threads=1, held=OWN)[1].best.kind == "int8-u8s8"


def test_without_a_passing_way_each_reason_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"no variant of w1-d1 passes .*: fp32 on CPU: deviates .*; int8-u8s8 on "
        r"CPU: deviates",
    ):
        choose(several(tmp_path, off={"fp32": 1.0, "int8-u8s8": 1.0}), NAME, "v", threads=1)


def test_release_with_wrong_float32_is_refused(tmp_path: Path, quick: dict[str, float]) -> None:
    with pytest.raises(ExportError, match="fp32 on CPU: deviates"):
        choose(several(tmp_path, off={"fp32": 1.0}), NAME, "v", threads=1)


def test_incomplete_or_non_finite_check_rejects(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected finite outputs"):
        choose(several(tmp_path, ("fp32",), off={"fp32": float("nan")}), NAME, "v", threads=1)


def test_earlier_choice_is_tested_but_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = several(tmp_path)
    before = Choice("v", "spring", 7, NAME, Trial("int8-u8s8", CPU, 1, 0.1, 0.2, 50))
    monkeypatch.setattr(graph_trial, "_time_session", lambda *_: pytest.fail("it was timed"))
    _, found = choose(folder, NAME, "v", before=before)
    assert found.best == before.best


def test_failing_earlier_choice_is_replaced(tmp_path: Path, quick: dict[str, float]) -> None:
    folder = several(tmp_path, off={"int8-u8s8": 1.0})
    before = Choice("v", "spring", 7, NAME, Trial("int8-u8s8", CPU, 1, 0.1, 0.2, 50))
    assert choose(folder, NAME, "v", threads=1, before=before)[1].best.kind == "fp32"
    gone = replace(before, best=replace(before.best, kind="int8-dynamic"))
    assert choose(folder, NAME, "v", threads=1, before=gone)[1].best.kind == "fp32"


def test_far_slower_way_is_timed_briefly(tmp_path: Path, quick: dict[str, float]) -> None:
    quick[f"{NAME}.int8-u8s8.onnx"] = 0.5
    _, found = choose(several(tmp_path), NAME, "v", threads=1)
    assert [graph_trial.runs for graph_trial in found.trials] == [50, 3]


def test_provider_fallback_is_rejected(
    tmp_path: Path,
    quick: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setattr(choosing, "list_providers", lambda: ("XnnpackExecutionProvider", CPU))
    _, found = choose(several(tmp_path, ("fp32",)), NAME, "v", threads=1)
    if "XnnpackExecutionProvider" not in list_providers():
        assert found.trials[0].reason == f"the runtime fell back to {CPU}"
    assert found.best.provider == CPU or "XnnpackExecutionProvider" in list_providers()


def test_busy_device_compares_medians() -> None:
    held_up = Trial("fp32", CPU, 1, p50=0.001, p90=0.050, runs=50)
    other = Trial("int8-u8s8", CPU, 1, p50=0.002, p90=0.003, runs=50)
    assert choosing._choose_best([held_up, other], busy=True) == 0
    assert choosing._choose_best([held_up, other], busy=False) == 1


def test_timed_ways_have_enough_runs(tmp_path: Path) -> None:
    _, found = choose(several(tmp_path, ("fp32",)), NAME, "v", threads=1)
    assert found.best.runs >= 50
    assert 0 < found.best.p50 <= found.best.p90
    took, accuracy = measure_session(load(GRAPH), OWN)
    assert took.p90 > 0
    assert accuracy == 0.75


def test_accuracy_of_classes_values_and_tokens() -> None:
    # of x: x0, -x1
    values = Session(make_bytes(given={**GIVEN, "objective": "value"}, output="values"), "toy")
    assert (
        graph_trial._measure_accuracy(
            values, np.array([[1, 2], [3, 4]], np.uint8), np.array([[1.0, -2.0], [3.0, -4.0]])
        )
        == 1.0
    )
    assert graph_trial._measure_accuracy(
        values, np.array([[1, 2], [3, 4]], np.uint8), np.array([[1.0, -4.0], [3.0, -2.0]])
    ) == pytest.approx((1 - 3) / 2)
    text = Session(make_text("next"), "text")  # after 0 comes 1, after 1 comes 2, after 2 comes 0
    assert graph_trial._measure_accuracy(
        text, np.array([[0, 1, 2]]), np.array([[1, 2, 1]])
    ) == pytest.approx(2 / 3)
    # says 2 of what is hidden: the fourth of seven tokens
    hidden = Session(make_text("masked"), "text")
    assert (
        graph_trial._measure_accuracy(hidden, np.array([[0, 1, 0], [2, 1, 0]]), np.zeros((2, 3)))
        == 1.0
    )


def test_own_examples_are_sampled_and_need_labels() -> None:
    x, y = np.arange(3000)[:, None], np.arange(3000)
    found = sample_own((x, y))
    assert found is not None
    assert len(found[1]) == 1000
    assert (found[1][0], found[1][-1]) == (0, 2999)
    assert sample_own((x[:0], y[:0])) is None
    with pytest.raises(DataError, match="as many labels as examples, found 2999 and 3000"):
        sample_own((x, y[1:]))


def test_ways_match_this_machine() -> None:
    assert list_providers()[-1] == CPU
    assert list_thread_counts(3) == (3,)
    assert list_thread_counts()[0] == 1


def test_a_foreign_submodel_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    folder = several(tmp_path)
    with pytest.raises(Unknown, match="unknown submodel 'w9'"):
        choose(folder, "w9", "v")
    (folder / f"{NAME}.fp32.onnx").write_bytes(b"damaged")
    with pytest.raises(ExportError, match="expected sha256"):
        choose(folder, NAME, release_reader.read_version(folder))


def test_untrained_submodel_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = several(tmp_path / "release")
    made = json.loads((folder / release_reader.MANIFEST).read_text())
    made["submodels"][0]["trained_updates"] = 0
    (folder / release_reader.MANIFEST).write_text(json.dumps(made))
    choose(folder, NAME, "v", threads=1)
    assert f"serving {NAME}, although no update of the run trained it; trained: none" in caplog.text
