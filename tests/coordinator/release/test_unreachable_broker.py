"""A release without a broker: it is in the audit log, and the error tells what the run explains."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator import audit_log
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import release_run
from federated.errors import LinkError
from tests.support.memory_federation import RUN, Member, digits, federate


def test_a_release_without_a_broker_is_recorded_and_tells_that_the_run_ended(
    tmp_path: Path,
) -> None:
    federate(
        tmp_path,
        [Member("a0", digits(0, 1))],
        {
            "method.name": "fedavg",
            "model.name": "mlp-small",
            "data.name": "digits",
            "rounds": 1,
            "train.steps": 1,
            "evaluate.devices": False,
            "broker.url": "",
            "broker.tls": True,
        },
    )
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        broker = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(LinkError) as raised:
            release_run(ReleaseRequest(RUN, broker), tmp_path / "runs", print)
    assert "uses certificates: use --broker mqtts://HOST; run" in str(raised.value)
    assert "the broker that it started ended with it: start your own" in str(raised.value)
    with pytest.raises(LinkError, match=r"mqtts://127\.0\.0\.1:8883"):  # the run's own, by default
        release_run(ReleaseRequest(RUN), tmp_path / "runs", print)
    rows, _ = audit_log.read(tmp_path / "runs" / RUN / "run.sqlite")
    assert [row.what for row in rows] == ["release", "release"]
    lines: list[str] = []
    release_run(ReleaseRequest(RUN, status=True), tmp_path / "runs", lines.append)
    assert lines[0].startswith("reports as of the last command"), "no broker is asked"
