"""The faults in a run's log, counted by kind and reason."""

from __future__ import annotations

import json
from pathlib import Path

from coordinator.views.fault_counts import describe_faults
from federated.runtime.logs import EVENTS


def write_log(file: Path, *events: tuple[str, str, str | None]) -> None:
    """Write events to a log: the kind, the message and the agent of each, a second apart."""
    lines = [
        {"time": f"2026-01-01T00:00:{second:02}", "event": kind, "message": text, "agent": agent}
        for second, (kind, text, agent) in enumerate(events)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_faults_are_counted_by_kind_and_reason_in_all_files_of_the_log(tmp_path: Path) -> None:
    write_log(
        tmp_path / f"{EVENTS}.1",
        ("round began", "round 1 of 9 started with 2 agents", None),
        ("went", "pi silent for 45 s", "pi"),
        ("came", "pi joined", "pi"),
        ("refused", "rejected from pi: not finite", "pi"),
    )
    write_log(
        tmp_path / EVENTS,
        ("went", "nano silent for 47 s", "nano"),
        ("went", "pi went away", "pi"),
        ("came", "pi restarted", "pi"),
        ("resumed", "resuming after round 1", None),
    )
    found = describe_faults(tmp_path)
    assert found["since"] == "2026-01-01T00:00:00"
    assert [tuple(one.values()) for one in found["faults"]] == [
        ("an agent left", "silent for 47 s", 2, 2, "2026-01-01T00:00:00"),
        ("a message or an update was refused", "not finite", 1, 1, "2026-01-01T00:00:03"),
        ("an agent left", "went away", 1, 1, "2026-01-01T00:00:01"),
        ("an agent restarted", "restarted", 1, 1, "2026-01-01T00:00:02"),
        ("the coordinator restarted", "resuming after round 1", 1, 0, "2026-01-01T00:00:03"),
    ]


LOST = ("broker lost", "lost the connection to the broker: timed out", None)


def count_losses(folder: Path) -> int:
    (row,) = describe_faults(folder)["faults"]
    assert row["fault"] == "the broker was lost"
    return int(row["times"])


def test_of_a_log_that_grew_only_the_new_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / EVENTS
    write_log(file, LOST, LOST)
    assert count_losses(tmp_path) == 2
    first, second = file.read_bytes().splitlines(keepends=True)
    # a counted line that became unreadable would be missing if it were read again
    file.write_bytes(first + b"x" * (len(second) - 1) + b"\n" + second + first[:20])
    assert count_losses(tmp_path) == 3
    with file.open("ab") as log:
        log.write(first[20:])  # the end of the unfinished line
    assert count_losses(tmp_path) == 4


def test_a_rotated_log_keeps_its_counts_and_another_file_starts_anew(tmp_path: Path) -> None:
    file = tmp_path / EVENTS
    write_log(file, LOST, LOST)
    assert count_losses(tmp_path) == 2
    file.rename(tmp_path / f"{EVENTS}.1")
    write_log(file, ("broker lost", "lost the connection to the broker: refused", None))
    assert sorted(row["times"] for row in describe_faults(tmp_path)["faults"]) == [1, 2]
    # the same file with other lines, as one that was deleted and whose number is used again
    write_log(file, ("resumed", "resuming after round 1", None), LOST, LOST)
    assert sorted(row["times"] for row in describe_faults(tmp_path)["faults"]) == [1, 4]


def test_a_run_without_a_log_has_no_faults(tmp_path: Path) -> None:
    assert describe_faults(tmp_path) == {"since": "", "faults": []}
