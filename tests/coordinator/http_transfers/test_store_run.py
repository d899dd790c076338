"""A coordinator and agents in processes of their own transfer through a store, and all of them
fail.
"""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("botocore")

from benchmarks.faults.parts.object_store import BUCKET, CREDENTIALS, SECRET, Way, run_store
from tests.support.object_stores import needs_store
from tests.support.processes import AGENT, COORDINATOR, Running, Start, result, wait_for_words
from tests.support.waiting import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.timeout(900),
    needs_store,
]

TRIAL = [
    *("--model", "mlp-small", "--min-agents", "2", "--rounds", "3", "--format", "json"),
    *("--set", "method.widths=[1.0]", "--set", "train.epochs=1", "--set", "fleet.wait=90"),
]


def start_agents(start: Start, broker: str) -> list[Running]:
    return [
        start(
            *(*AGENT, "join", "--broker", broker, "--name", f"a{index}", "--format", "json"),
            *("--data", "digits", "--shard", f"{index}/2", "--spool", f"spool{index}"),
        )
        for index in range(2)
    ]


def test_a_fleet_goes_on_after_everything_failed(tmp_path: Path, start: Start, broker: str) -> None:
    with run_store(tmp_path / "store") as server, closing(Way(server.endpoint)) as way:
        way.holding = True
        place = ["--set", f"http.store=s3://{BUCKET}/all", "--set", f"http.endpoint={way.endpoint}"]
        named = ["--broker", broker, "--name", "stored"]
        coordinator = start(*COORDINATOR, "start", *named, *TRIAL, *place, variables=CREDENTIALS)
        log = tmp_path / "0.err"
        assert wait_for_words(coordinator, log, f"through s3://{BUCKET}/all/stored/ at")
        killed = start_agents(start, broker)
        assert way.held.wait(300), "an update is under way"
        for one in killed:
            one.send_signal(signal.SIGKILL)
            one.wait(PATIENCE)
        way.holding = False
        agents = start_agents(start, broker)
        assert wait_for_words(coordinator, log, "round 1 took", 300)
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait(PATIENCE)
        way.breaking = b"/weights/"
        resume = [*COORDINATOR, "start", *named, "--resume", "--format", "json"]
        coordinator = start(*resume, variables=CREDENTIALS)
        assert wait_for_words(coordinator, tmp_path / "5.err", "503", 300)
        way.away = False
        assert result(coordinator, 300)["rounds"] == 3
        for process in agents:
            result(process)
        assert server.list_objects() == []
    record = b"".join(one.read_bytes() for one in (tmp_path / "runs").rglob("*") if one.is_file())
    assert b"endpoint" in record
    for secret in (SECRET, CREDENTIALS["AWS_ACCESS_KEY_ID"], "X-Amz-Signature"):
        assert secret.encode() not in record


def test_a_store_that_cannot_be_used_ends_the_coordinator(
    tmp_path: Path, start: Start, broker: str
) -> None:
    with run_store(tmp_path / "store") as server:
        for number, (store, variables, why) in enumerate(
            [
                ("s3://missing", CREDENTIALS, "NoSuchBucket"),
                (
                    f"s3://{BUCKET}",
                    {**CREDENTIALS, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
                    "no credentials: set AWS_ACCESS_KEY_ID",
                ),
            ]
        ):
            place = ["--set", f"http.store={store}", "--set", f"http.endpoint={server.endpoint}"]
            command = [*COORDINATOR, "start", "--broker", broker, *TRIAL, *place]
            process = start(*command, variables=variables)
            assert process.wait(PATIENCE) == 3
            assert why in (tmp_path / f"{number}.err").read_text()
