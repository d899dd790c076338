"""The benchmark of the web page, and its pictures in the README."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.web_page import large_fleet_measurement
from benchmarks.web_page.browser import find_chromium
from benchmarks.web_page.command import DOCS, format_conclusion
from benchmarks.web_page.large_fleet_measurement import (
    compare_quarters,
    is_heap_flat,
    measure,
    percentile,
)
from benchmarks.web_page.pictures import README, list_views
from coordinator.built_page import PACKAGE


def test_the_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([70.0, 60.0], 0.99) == 70.0
    assert percentile([], 0.99) == 0.0


ROUND = (380, 385, 384, 390, 396, 400, 420)  # memory in one round, with a peak at its end


def grow(by: float) -> list[int]:
    """Return the memory of five rounds that each need this many times that of the round before."""
    return [round(heap * by**number) for number in range(5) for heap in ROUND]


def test_memory_that_only_peaks_at_the_end_of_each_round_is_flat() -> None:
    assert is_heap_flat(grow(1.0))
    assert is_heap_flat(grow(1.005)), "within the noise of a browser"
    assert is_heap_flat(grow(0.9))
    assert compare_quarters(grow(1.0)) == (385, 390)
    assert is_heap_flat([350, *grow(1.0)[1:]]), "a single sample right after a round began"


@pytest.mark.parametrize("start", range(len(ROUND)))
def test_memory_that_grows_with_each_round_is_not_flat(start: int) -> None:
    """Wherever in a round the first sample falls."""
    assert not is_heap_flat(grow(1.02)[start:])
    assert is_heap_flat(grow(1.0)[start:])


def test_without_samples_memory_is_not_flat() -> None:
    assert not is_heap_flat([])


def test_every_view_has_pictures_on_a_desk_and_a_phone_light_and_dark() -> None:
    shots = list_views()
    assert len({shot.file for shot in shots}) == len(shots) == 9 * 4
    assert {(shot.size[0], shot.scheme) for shot in shots} == {
        (width, scheme) for width in (1280, 390) for scheme in ("light", "dark")
    }


def test_the_readme_shows_the_page_in_small_pictures() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    for shot in README:
        picture = (DOCS / shot.file).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == shot.size
        assert len(picture) < 120_000
        assert f"docs/{shot.file}" in text


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")
@pytest.mark.skipif(find_spec(PACKAGE) is None, reason="the page is not built: run `make web`")
@pytest.mark.usefixtures("forked_commands")
def test_a_small_fleet_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright.sync_api")
    monkeypatch.setattr(large_fleet_measurement, "DELAY", 5.0)
    monkeypatch.setattr(large_fleet_measurement, "HEAP_EVERY", 0.5)
    made = measure(tmp_path, agents=5, rounds=1, blocks=1, say=print)
    assert made.events > 0
    assert made.heaps
    assert made.with_page > 0
    assert any("5 agents" in line for line in format_conclusion(made))
