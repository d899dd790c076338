"""The documentation's estimate for a million devices, which is made of saved results of scale."""

from __future__ import annotations

from benchmarks.generated_docs.capacity_tables import list_capacity, list_fleet_sizes


def test_the_estimate_shows_its_check_its_needs_and_its_costs() -> None:
    text = "\n".join(list_capacity())
    for words in (
        "| with 5,000 | predicted | error |",
        "| connections of agents | 1,000,000; 1,000,000 in a round | 10,000; 10,000 in a round |",
        "nodes for connections",
        "GB a round",
        "| total |",
        "- Doubt: 200 times as many",
    ):
        assert words in text
    assert "unknown" not in text


def test_each_saved_size_is_shown_with_its_commit() -> None:
    found = [*list_fleet_sizes()]
    assert len(found) == 2 + 4
    assert all(line.endswith("| 0 |") for line in found[2:])  # nothing was lost
    assert any("| aba7df17 |" in line for line in found)
