"""Modes of the project's files: with any umask, only this user can open them."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.access.certificate_authority import Authority
from coordinator.broker import local_broker as brokers
from coordinator.observe.event_readers.metrics_server import MetricsServer
from coordinator.settings.service_tables import Metrics
from coordinator.store.run_store import Store
from federated.device.agent_run_files import Spool
from federated.runtime import atomic_files
from federated.training import state_between_rounds
from tests.support.memory_federation import Member, digits, federate


@pytest.fixture
def lax() -> Iterator[None]:
    """Yield with a umask under which every user can open a file that is made without a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name == "federated.runtime.atomic_files"
    ]


def test_only_this_user_can_open_folders_of_runs_spools_memories_and_keys(
    tmp_path: Path, lax: None, caplog: pytest.LogCaptureFixture
) -> None:
    Store.create(tmp_path / "runs", "r").close()
    Spool(tmp_path / "spool" / "r" / "a").close()
    state_between_rounds.write(tmp_path / "memory", 1, {"w": np.zeros(1)}, since=0)
    Authority(tmp_path / "pki").close()
    kept = [
        tmp_path / "runs" / "r",
        tmp_path / "spool" / "r" / "a",
        tmp_path / "memory",
        tmp_path / "pki",
    ]
    assert {str(folder): f"{mode(folder):o}" for folder in kept} == dict.fromkeys(
        map(str, kept), "700"
    )
    assert not warnings(caplog)


@pytest.mark.broker
def test_only_this_user_can_open_the_folder_of_a_broker(tmp_path: Path, lax: None) -> None:
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker"):
        assert mode(tmp_path / "broker") == 0o700


def test_all_files_of_a_run_are_in_a_private_folder(tmp_path: Path, lax: None) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(
        tmp_path,
        members,
        {
            "method.name": "fedavg",
            "method.widths": [0.25],
            "train.steps": 1,
            "evaluate.devices": False,
        },
    )
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) > 5
    assert not [
        path
        for path in left
        if not any(mode(above) & 0o077 == 0 for above in path.parents if tmp_path in above.parents)
    ]


def test_a_folder_that_was_there_and_open_keeps_its_mode_and_is_named_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("r", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    Spool(tmp_path / "a").close()
    store = Store.create(tmp_path, "r")
    store.close()
    words = "every user of this machine may open it (mode 0755), and it holds"
    assert warnings(caplog) == [
        f"{tmp_path / 'a'}: {words} what this device learned; run: chmod o= {tmp_path / 'a'}",
        f"{tmp_path / 'r'}: {words} single updates of devices; run: chmod o= {tmp_path / 'r'}",
    ]
    assert mode(tmp_path / "r") == 0o755
    caplog.clear()
    Store.open(tmp_path, "r", read_only=True).close()
    assert not warnings(caplog), "who only looks need not hear it"
    Store.open(tmp_path, "r").close()
    assert len(warnings(caplog)) == 1


def test_a_group_may_be_allowed_on_purpose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(0o750)
    atomic_files.make_private(tmp_path / "r", "updates")
    assert not warnings(caplog)


def test_a_file_in_a_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "r").touch()
    with pytest.raises(FileExistsError):
        atomic_files.make_private(tmp_path / "r", "updates")


@pytest.mark.broker
def test_world_readable_passwords_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users"
    file.write_text("a:secret\n")
    file.chmod(0o644)
    brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker", clients=file).stop()
    assert warnings(caplog) == [
        f"{file}: every user of this machine may open it (mode 0644), and it holds "
        f"passwords; run: chmod o= {file}"
    ]


def test_a_world_readable_key_for_metrics_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Authority(tmp_path / "pki")
    made.close()
    made.server.chmod(0o604)
    MetricsServer(
        Metrics(
            listen="127.0.0.1:0",
            certificate=str(made.server),
            key=str(made.server),
            ca=str(made.ca),
        )
    ).close()
    assert [said.partition(": ")[0] for said in warnings(caplog)] == [str(made.server)]
