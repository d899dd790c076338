"""Tests of the picture of a run's live view."""

from __future__ import annotations

from pathlib import Path

from benchmarks.generated_docs.live_view import REDRAW, choose_frame, render_svg

PICTURE = Path(__file__).parents[2] / "docs" / "live_view.svg"
PLAIN = "run\nagent  submodel   state  loss\npi     w0.5-d2    idle\npc     w0.5-d2    idle\n"
VARIED = (
    "run\nagent  submodel   state  loss\npi     w0.5-d2    train  0.123\npc     w1-d4      idle\n"
)
SCORES = "submodel  accuracy (central)\nw1-d4     0.903"


def test_the_frame_with_the_most_variety_is_chosen() -> None:
    frames = [PLAIN + SCORES, VARIED + SCORES, PLAIN + SCORES]
    assert choose_frame([*frames, VARIED]) == VARIED + SCORES  # the last one has no scores


def test_frames_are_split_where_rich_moves_up() -> None:
    assert REDRAW.split("a\nb\x1b[2K\x1b[1A\x1b[2Kc\nd") == ["a\nb", "c\nd"]


def test_a_frame_is_drawn_with_all_its_words() -> None:
    picture = render_svg(VARIED + SCORES)
    assert "0.903" in picture
    assert picture.startswith("<svg")


def test_the_picture_in_the_readme_shows_a_round_and_is_small() -> None:
    picture = PICTURE.read_text()
    assert "round" in picture
    assert len(picture) < 60_000
    assert f"docs/{PICTURE.name}" in (PICTURE.parents[1] / "README.md").read_text()
