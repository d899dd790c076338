"""The enrolment server in its own process: it survives floods and failures, and ends with the
coordinator.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Literal

import psutil
import pytest

from coordinator.access.certificate_authority import Authority
from coordinator.access.enrolment_server_process import EnrolmentProcess
from edge_agent.access.enrolment import enrol
from federated.errors import LinkError
from federated.runtime import server_process
from tests.support.connection_flood import count_descriptors, open_silent, start_flood
from tests.support.waiting import eventually

pytestmark = [pytest.mark.processes]

DESCRIPTORS = 256  # of a process in these tests


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    made = Authority(tmp_path / "pki")
    yield made
    made.close()


@pytest.fixture
def enrolment(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnrolmentProcess]:
    """A process with few descriptors."""
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        shell = ["/bin/sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
        return popen([*shell, *command], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(server_process.subprocess, "Popen", start)
    with contextlib.closing(EnrolmentProcess(authority.folder, ("127.0.0.1", 0), "8883")) as made:
        monkeypatch.undo()
        yield made


def ask(enrolment: EnrolmentProcess, authority: Authority, timeout: float = 60) -> float:
    """Return the seconds until the server shows the authority's certificate."""
    start = time.monotonic()
    context = ssl.create_default_context(cafile=str(authority.ca))
    link = HTTPSConnection("localhost", enrolment.port, timeout=timeout, context=context)
    with contextlib.closing(link):
        link.request("GET", "/authority")
        assert link.getresponse().read() == authority.ca.read_bytes()
    return time.monotonic() - start


@pytest.mark.parametrize("kind", ["bare", "hold", "tls"])
def test_a_device_enrols_within_seconds_during_a_flood(
    authority: Authority,
    enrolment: EnrolmentProcess,
    kind: Literal["bare", "tls", "hold"],
    tmp_path: Path,
) -> None:
    ask(enrolment, authority)  # it has started
    assert enrolment.pid is not None
    pid, before, slowest = enrolment.pid, count_descriptors(enrolment.pid), 0.0
    with start_flood(enrolment.port, kind) as flood:
        eventually(lambda: flood.connections > 200)
        for number in range(3):
            token = authority.invite(f"a{number}", "localhost", enrolment.port, 60)
            start = time.monotonic()
            enrol(token, tmp_path / token.name)
            slowest = max(slowest, time.monotonic() - start)
            assert count_descriptors(pid) < DESCRIPTORS / 2 + before
    print(f"{kind}: {flood.connections} connections, slowest enrolment {slowest:.2f} s")
    assert slowest < 5
    assert enrolment.pid == pid
    eventually(lambda: count_descriptors(pid) <= before + 4)


def test_a_device_at_the_address_of_a_flood_is_answered(
    authority: Authority, enrolment: EnrolmentProcess
) -> None:
    ask(enrolment, authority)
    with (
        start_flood(enrolment.port, "bare", "127.0.0.1"),
        open_silent(enrolment.port, 100, "127.0.0.1"),
    ):
        assert max(ask(enrolment, authority) for _ in range(3)) < 5


def test_a_killed_process_is_restarted_at_the_same_port(
    authority: Authority, enrolment: EnrolmentProcess
) -> None:
    ask(enrolment, authority)
    assert enrolment.pid is not None
    first = psutil.Process(enrolment.pid)
    first.kill()
    first.wait(10)
    with socket.create_connection(("127.0.0.1", enrolment.port)):  # clients wait until it is back
        eventually(lambda: (enrolment.restart_if_dead(), enrolment.pid not in (None, first.pid))[1])
        ask(enrolment, authority)


def test_a_process_that_cannot_start_is_tried_less_and_less_often(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_process, "RESTART_DELAY", 0.1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    enrolment = EnrolmentProcess(authority.folder, ("127.0.0.1", 0), "8883")
    with contextlib.closing(enrolment):
        eventually(lambda: (enrolment.restart_if_dead(), len(caplog.records) == 4)[1], 30)
    assert [record.getMessage().rpartition("in ")[2] for record in caplog.records] == [
        "0.1 s",
        "0.2 s",
        "0.4 s",
        "0.8 s",
    ]
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with contextlib.closing(EnrolmentProcess(authority.folder, ("127.0.0.1", 0), "8883")):
        assert "enrolment cannot start: " in caplog.text


def test_a_certificate_with_a_new_name_is_used_without_a_restart(
    authority: Authority, enrolment: EnrolmentProcess
) -> None:
    def names() -> str:
        context = ssl.create_default_context(cafile=str(authority.ca))
        with (
            socket.create_connection(("127.0.0.1", enrolment.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as link,
        ):
            return str(link.getpeercert())

    assert "new.example" not in names()
    authority.add_hosts(["new.example"])
    eventually(lambda: "new.example" in names())


def test_the_process_ends_with_the_coordinator(authority: Authority) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from coordinator.access.enrolment_server_process import EnrolmentProcess\n"
        "made = EnrolmentProcess(Path(sys.argv[1]), ('127.0.0.1', 0), '8883')\n"
        "print(made.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(authority.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stdout is not None
        child = psutil.Process(int(coordinator.stdout.readline()))
        coordinator.send_signal(signal.SIGKILL)
    psutil.wait_procs([child], 30)
    assert not child.is_running()


def test_a_port_in_use_is_an_error(authority: Authority) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LinkError, match=r"choose another port with broker\.enrol"),
    ):
        EnrolmentProcess(authority.folder, ("127.0.0.1", taken.getsockname()[1]), "8883")


def test_the_limit_on_descriptors_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from federated.system.process_limits import raise_descriptor_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300)); raise_descriptor_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 300
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "(300, 300)"
