"""A running run is shown and controlled from its folder: state, agents and counters."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.now_json import FILE
from coordinator.round.round_events import RoundPlanned
from coordinator.store import control_requests
from coordinator.store.control_requests import Stopped, send_request
from coordinator.store.run_store import Store
from coordinator.trust.privacy_budget import compute_epsilon
from coordinator.views.run_list import describe_runs
from coordinator.views.run_status import (
    describe_lost_tasks,
    describe_status,
    render_members,
    render_status,
    render_table,
)
from federated.errors import StoreError
from federated.runtime.logs import EVENTS
from tests.support.memory_federation import RUN, Federation, Member, digits, federate
from tests.support.waiting import PATIENCE

SMALL = {
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "method.widths": [0.25],
    "train.steps": 2,
    "evaluate.every": 5,
    "evaluate.devices": False,
    "fleet.min_agents": 2,
}


class Going:
    """A run in a thread of its own. found: how it ended. busy: why its agents do not work at the
    moment.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.runs, self.folder = folder / "runs", folder / "runs" / RUN
        self.found: Federation | BaseException | None = None
        self.fleet: MessageLoop | None = None
        self.busy: str = settings.pop("busy", "")
        self._thread = threading.Thread(
            target=self._go, args=(folder, settings.pop("resume", False), SMALL | settings)
        )
        self._thread.start()

    def _go(self, folder: Path, resume: bool, settings: dict[str, Any]) -> None:
        members = [Member(f"a{i}", digits(i, 2), pause=lambda: self.busy) for i in range(2)]
        try:
            self.found = federate(
                folder,
                members,
                settings,
                resume=resume,
                watch=lambda fleet: setattr(self, "fleet", fleet),
            )
        except BaseException as error:
            self.found = error

    def until(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the status as soon as the condition is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(StoreError):  # not begun
                if (self.folder / FILE).exists() and true(made := describe_status(RUN, self.runs)):
                    return made
            assert self._thread.is_alive(), self.found
            time.sleep(0.05)
        pytest.fail(f"the condition was never true: {describe_status(RUN, self.runs)}")

    def metrics(self) -> str:
        """Return the address of the last metrics server in the log."""
        events = [json.loads(line) for line in (self.folder / EVENTS).read_text().splitlines()]
        return next(
            str(event["address"]) for event in reversed(events) if event.get("event") == "metrics"
        )

    def join(self) -> Federation | BaseException | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.found


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Going]]:
    monkeypatch.setattr(control_requests, "POLL", 0.1)
    started: list[Going] = []

    def go(**settings: Any) -> Going:
        started.append(Going(tmp_path, **settings))
        return started[-1]

    yield go
    for one in started:
        with contextlib.suppress(StoreError):
            send_request(one.folder, "stop now")
        one.join()


def command(*words: str) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_tasks_are_shown_from_stage_to_stage_and_agents_pinned(
    going: Callable[..., Going],
) -> None:
    run = going(rounds=500)
    seen = run.until(
        lambda made: any(
            course["stages"][-1][0] == "folded" for course in (made["now"] or {}).get("courses", ())
        )
    )
    (a0, a1) = seen["now"]["courses"]
    assert (a0["agent"], a1["agent"]) == ("a0", "a1")
    times = [time for _, time in a0["stages"]]
    assert times == sorted(times)
    assert 0.0 <= times[-1] <= seen["now"]["elapsed"] <= seen["now"]["limit"]
    where, name = ["--run", RUN, "--runs", str(run.runs)], a0["submodel"]
    assert f"gives a0 the submodel {name}" in command("pin", "a0", name, *where)
    assert describe_status(RUN, run.runs)["requests"]["pins"] == {"a0": name}
    assert f"pinned: a0 to {name}" in render_status(describe_status(RUN, run.runs))
    assert "measurements of a0 decide again" in command("pin", "a0", "--off", *where)
    assert "had no pin" in command("pin", "a0", "--off", *where)
    assert CliRunner().invoke(main, ["pin", "a0", *where]).exit_code == 2
    done = run.until(lambda made: made["rounds_done"] >= 1)
    assert done["now"]["courses"]


@pytest.mark.slow
def test_a_run_is_shown_paused_stopped_and_resumed(going: Callable[..., Going]) -> None:
    run = going(rounds=500)
    seen = run.until(lambda made: made["rounds_done"] >= 2 and len(made["now"]["members"]) == 2)
    assert seen["state"] == "running"
    assert {member["agent"] for member in seen["now"]["members"]} == {"a0", "a1"}
    assert sum(seen["now"]["agents"].values()) == 2
    assert seen["eta"] > 0
    assert re.search(
        r"run 'test': fedavg of mlp-small on digits\n.*rounds done", render_status(seen)
    )
    where = ["--runs", str(run.runs)]
    assert "pauses after the current round" in command("pause", *where)
    paused = run.until(lambda made: made["now"]["phase"] == "paused")
    time.sleep(1.0)
    assert describe_status(RUN, run.runs)["rounds_done"] == paused["rounds_done"], "no round starts"
    assert "paused after round" in render_status(describe_status(RUN, run.runs))
    command("pause", RUN, "--off", *where)
    run.until(lambda made: made["rounds_done"] > paused["rounds_done"])
    assert (
        json.loads(command("stop", "--wait", "60", "--format", "json", *where))["asked"]
        == "has stopped"
    )
    assert isinstance(run.join(), Stopped)
    stopped = describe_status(RUN, run.runs)
    assert stopped["state"] == "stopped"
    assert f"resume with: coordinator start --name {RUN} --resume" in render_status(stopped)
    assert run.fleet is not None
    assert not [state for state in run.fleet.tasks if not state.outcome], (
        "the round was finished first"
    )
    done = stopped["rounds_done"]
    again = going(rounds=done + 2, resume=True)
    assert isinstance(again.join(), Federation)
    over = describe_status(RUN, run.runs)
    assert (over["state"], over["rounds_done"]) == ("over", done + 2)


def test_a_pause_while_waiting_for_agents_starts_no_round(
    going: Callable[..., Going],
) -> None:
    run = going(rounds=500, busy="on battery")
    run.until(lambda made: made["now"]["phase"] == "waiting")
    where = ["--runs", str(run.runs)]
    assert "pauses after the current round" in command("pause", *where)
    assert "was paused before" in command("pause", *where)
    run.until(lambda made: made["requests"]["seen"])
    assert "starts no round until" in render_status(describe_status(RUN, run.runs))
    run.busy = ""
    assert run.until(lambda made: made["now"]["phase"] == "paused")["now"]["round"] == 0
    assert "test' resumes" in command("pause", "--off", *where)
    run.until(lambda made: made["rounds_done"] >= 1)
    assert "was not paused" in command("pause", "--off", *where)


def test_stop_now_ends_mid_round_and_the_run_resumes_there(
    going: Callable[..., Going],
) -> None:
    # long enough: requests are read once a second
    run = going(rounds=500, **{"train.steps": 0, "train.epochs": 10_000})
    run.until(lambda made: made["now"]["phase"] == "train")
    send_request(run.folder, "stop now")
    assert isinstance(run.join(), Stopped)
    store = Store.open(run.runs, RUN, read_only=True)
    found = store.journal.read(store.checkpoint_id)
    assert found is not None
    assert any(isinstance(event, RoundPlanned) for event in found[1])
    store.close()


def test_events_are_kept_with_their_round_and_agent(
    going: Callable[..., Going], tmp_path: Path
) -> None:
    run = going(rounds=2)
    assert isinstance(run.join(), Federation)
    events = [json.loads(line) for line in (run.folder / EVENTS).read_text().splitlines()]
    assert {event["run"] for event in events} == {RUN}
    told = [event.get("event") for event in events]
    assert [word for word in told if word in ("round began", "round ended")] == [
        "round began",
        "round ended",
    ] * 2
    assert told.count("folded") == 4
    assert sum(event.get("event") == "came" for event in events) == 2
    assert told[-1] == "coordinator ended"
    where = ["--runs", str(run.runs)]
    lines = command("log", "--agent", "a1", "--round", "2", *where).splitlines()
    assert len(lines) == 1
    assert "a1: folded" in lines[0]
    assert (
        json.loads(command("log", RUN, "--round", "1", "--format", "json", *where).splitlines()[0])[
            "event"
        ]
        == "round began"
    )
    assert "a0: folded" in command("log", "-f", *where), "all events of a finished run"


def test_all_runs_are_listed_and_damaged_ones_named(going: Callable[..., Going]) -> None:
    run = going(rounds=1)
    run.join()
    (run.runs / "broken").mkdir()
    (run.runs / "broken" / "run.sqlite").write_bytes(
        b"this is no database, and never was one" * 100
    )
    found = {one["run"]: one for one in describe_runs(run.runs)}
    assert found[RUN]["state"] == "over"
    assert (found[RUN]["rounds_done"], found[RUN]["method"]) == (1, "fedavg")
    assert 0 <= found[RUN]["accuracy"] <= 1
    assert found["broken"]["state"] == "damaged"
    shown = command("runs", "--runs", str(run.runs))
    assert "1 of 1" in shown
    assert "broken: " in shown


def test_a_killed_coordinator_differs_from_a_stopped_one(
    going: Callable[..., Going],
) -> None:
    run = going(rounds=1)
    run.join()
    now = json.loads((run.folder / FILE).read_text())
    store = Store.open(run.runs, RUN)
    store._database.execute("DELETE FROM rounds")
    store._database.commit()
    store.close()
    (run.folder / FILE).write_text(json.dumps(now | {"phase": "train", "round": 1}))
    dead = describe_status(RUN, run.runs)
    assert dead["state"] == "dead"
    assert "the coordinator crashed or was killed in round 1 (train)" in render_status(dead)
    (run.folder / FILE).write_text(json.dumps(now | {"phase": "failed", "reason": "no space left"}))
    assert "failed: no space left" in render_status(describe_status(RUN, run.runs))
    (run.folder / FILE).write_text("{")
    assert describe_status(RUN, run.runs)["state"] == "stopped", "an invalid file is ignored"


def test_errors_without_runs_or_coordinators(tmp_path: Path) -> None:
    for words in (["status"], ["pause"], ["stop", "nothing"], ["log", "nothing"]):
        done = CliRunner().invoke(main, [*words, "--runs", str(tmp_path)])
        assert done.exit_code == 7, done.output
        assert "error: no run" in done.output
    assert "no run in" in command("runs", "--runs", str(tmp_path))
    for words in (["status"], ["devices"], ["pause"], ["log", "nothing"], ["start", "--resume"]):
        done = CliRunner().invoke(main, [*words, "--runs", str(tmp_path / "elsewhere")])
        assert done.exit_code == 7
        name = "'nothing' " if "nothing" in words else ""
        assert f"no run {name}in the folder {tmp_path / 'elsewhere'}" in done.output
        assert "not a folder" in done.output
        assert "--runs DIR" in done.output


# ---- metrics -------------------------------------------------------------------------------------


def scraped(place: str) -> dict[str, float]:
    with urllib.request.urlopen(place, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_metrics_count_a_run_and_name_no_agent(going: Callable[..., Going]) -> None:
    run = going(rounds=500, **{"metrics.listen": "127.0.0.1:0"})
    run.until(lambda made: made["rounds_done"] >= 3)
    send_request(run.folder, "pause")  # else a round is written before it is counted
    run.until(lambda made: made["now"]["phase"] == "paused")
    place = run.metrics()
    found = scraped(place)
    assert found["espalier_rounds_total"] >= 3
    assert found["espalier_round_seconds_count"] == found["espalier_rounds_total"]
    assert found['espalier_updates_total{outcome="folded"}'] == 2 * found["espalier_rounds_total"]
    assert found['espalier_stage_seconds_count{stage="fold"}'] >= 6
    assert sum(value for name, value in found.items() if name.startswith("espalier_agents{")) == 2
    assert found['espalier_link_bytes_total{direction="up"}'] > 10_000
    assert {name for name in found if name.startswith("espalier_rejects_total")} == {
        f'espalier_rejects_total{{reason="{kind}"}}'
        for kind in (
            "joining",
            "protocol",
            "malformed",
            "message",
            "unasked",
            "size",
            "update",
            "flood",
        )
    }
    assert found["espalier_rounds_wanted"] == 500
    assert not [name for name in found if "a0" in name or "a1" in name]
    later = scraped(place)
    assert (
        later['espalier_link_bytes_total{direction="up"}']
        >= found['espalier_link_bytes_total{direction="up"}']
    )
    send_request(run.folder, "stop now")
    run.join()
    with pytest.raises(OSError, match="refused"):
        scraped(place)


@pytest.mark.slow
def test_metrics_report_epsilon_also_after_a_resume(
    going: Callable[..., Going],
) -> None:
    private = {"metrics.listen": "127.0.0.1:0", "private.noise": 1.5, "private.clip": 1.0}
    run = going(rounds=500, **private)
    run.until(lambda made: made["rounds_done"] >= 2)
    send_request(run.folder, "pause")
    done = run.until(lambda made: made["now"]["phase"] == "paused")["rounds_done"]
    told = scraped(run.metrics())["espalier_privacy_epsilon"]
    assert told == pytest.approx(compute_epsilon({"a": done / 1.5**2}, 1e-5)), (
        "every device was in each round's sum once"
    )
    assert f"; epsilon {told:.4g}; " in render_status(describe_status(RUN, run.runs))
    send_request(run.folder, "stop now")
    run.join()
    assert render_status(describe_status(RUN, run.runs)).endswith(
        f"resume with: coordinator start --name {RUN} --resume"
    )
    assert f"; epsilon {told:.4g}\n" in render_status(describe_status(RUN, run.runs)), (
        "also of a stopped run"
    )
    again = going(rounds=500, resume=True, **private)
    again.until(lambda made: made["now"]["phase"] == "paused")
    assert scraped(again.metrics())["espalier_privacy_epsilon"] == told, (
        "before another round has ended"
    )


def test_metrics_of_a_run_without_privacy_lack_epsilon(going: Callable[..., Going]) -> None:
    run = going(rounds=500, **{"metrics.listen": "127.0.0.1:0"})
    made = run.until(lambda made: made["rounds_done"] >= 1)
    assert "espalier_privacy_epsilon" not in scraped(run.metrics())
    assert "epsilon" not in render_status(made)


def test_the_status_says_until_when_a_phase_waits_for_absent_agents() -> None:
    def make(agent: str, *stages: str, due: float | None, late: bool = False) -> dict[str, Any]:
        timed = [(stage, float(time)) for time, stage in enumerate(stages)]
        return {"agent": agent, "submodel": "w1", "stages": timed, "due": due, "late": late}

    courses = [
        make("a", "fetch", "train", due=90.0),
        make("b", "fetch", "lost", due=40.0),
        make("c", "fetch", "lost", "folded", due=None),
        make("d", "lost", due=35.0, late=True),
    ]
    updated = datetime.now().astimezone().replace(hour=14, minute=3, second=0, microsecond=0)
    now = {"updated": updated.isoformat(), "elapsed": 10.0, "limit": None, "courses": courses}
    (line,) = describe_lost_tasks(now)
    assert "until 14:03:11 for the return of b, then" in line, "20 s after its loss in second 1"
    (line,) = describe_lost_tasks({**now, "limit": 15.0})
    assert "until 14:03:05" in line
    assert not describe_lost_tasks({**now, "elapsed": 22.0})
    assert not describe_lost_tasks({**now, "courses": courses[:1]})


def test_texts_of_agents_move_no_cursor() -> None:
    said = render_table(
        render_members(
            [
                {
                    "agent": "a",
                    "submodel": "w1",
                    "state": "paused",
                    "task": "",
                    "loss": None,
                    "reason": "hot\x1b[2J\nb  ok",
                }
            ]
        )
    )
    assert "hot?[2J b  ok" in said
    assert "\x1b" not in said
