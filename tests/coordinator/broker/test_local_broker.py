"""A local broker: it answers on loopback only, and ends with the process that started it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from federated.errors import ConfigError, LinkError
from federated.wire.links.catalogue import open_link
from tests.support.brokers import BOTH, is_listening, needs_mosquitto
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker


def run_starter(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that starts a broker, prints its address and sleeps."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from coordinator.broker.local_broker import start\n"
        "broker = start(port=0, kind=sys.argv[1], directory=Path(sys.argv[2])); "
        "print(broker.address, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, kind, str(folder)],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.parametrize("kind", BOTH)
def test_a_started_broker_answers_on_loopback_only_and_stops(kind: str, tmp_path: Path) -> None:
    broker = brokers.start(port=0, kind=kind, directory=tmp_path)
    assert broker.kind == kind
    assert re.search(r"\d+\.\d+", broker.name)
    assert broker.address.startswith("127.0.0.1:")
    open_link(broker.address, "a").close()
    broker.stop()
    broker.stop()
    assert not is_listening(broker.address)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_ends_when_its_starter_is_killed(
    kind: str, how: signal.Signals, tmp_path: Path
) -> None:
    process = run_starter(kind, tmp_path)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    assert is_listening(address)
    process.send_signal(how)
    process.wait()
    process.stdout.close()
    eventually(lambda: not is_listening(address))


@pytest.mark.parametrize("kind", BOTH)
def test_ctrl_c_does_not_reach_the_broker(kind: str, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole process group of the starter."""
    process = run_starter(kind, tmp_path)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    process.send_signal(signal.SIGSTOP)  # it must not end, which would end the broker
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert is_listening(address)
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not is_listening(address))


def test_without_mosquitto_the_embedded_broker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    with brokers.start(port=0, directory=tmp_path) as broker:
        assert broker.kind == "embedded"
    with pytest.raises(LinkError, match="install it"):
        brokers.start(port=0, kind="mosquitto", directory=tmp_path)


def test_a_port_in_use_is_an_error_with_both_remedies(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match=rf"port {port} of 127.0.0.1 is in use") as raised:
            brokers.start(port=port, directory=tmp_path)
    for text in (f"--broker 127.0.0.1:{port}", "--port"):
        assert text in raised.value.on_command_line
    assert f'broker="127.0.0.1:{port}"' in str(raised.value)


def test_a_restart_waits_until_the_broker_of_a_killed_process_has_released_its_port(
    tmp_path: Path,
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    release = threading.Timer(0.5, taken.close)
    release.start()
    try:
        with brokers.start(port=port, kind="embedded", directory=tmp_path) as broker:
            assert broker.address == f"127.0.0.1:{port}"
    finally:
        release.join()


@pytest.mark.parametrize("listen", ["0.0.0.0", "192.0.2.7", "::"])
def test_no_broker_is_exposed_to_the_network_without_authentication(
    listen: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="passwords"):
        brokers.start(listen, 0, directory=tmp_path)


def test_a_listening_address_must_be_one_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:x\n")
    with pytest.raises(ConfigError, match="not an address of this machine"):
        brokers.start("192.0.2.7", 0, directory=tmp_path, clients=tmp_path / "users")
    with pytest.raises(ConfigError, match="expected an IP address or localhost, without a port"):
        brokers.start("my-host", 0, directory=tmp_path)


@pytest.mark.parametrize("listen", ["127.0.0.1:1884", "[::1]:1884"])
def test_an_address_with_a_port_is_refused_and_the_flag_for_the_port_named(
    listen: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        brokers.start(listen, directory=tmp_path)
    assert "--port" in raised.value.on_command_line
    assert '"port"' in str(raised.value)


@needs_mosquitto
def test_passwords_are_stored_hashed_and_the_coordinator_has_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "users").write_text("me:correct-horse\n")
    with brokers.start(port=0, directory=tmp_path / "b", clients=tmp_path / "users") as broker:
        open_link(broker.url, "coordinator").close()
        kept = b"".join(path.read_bytes() for path in (tmp_path / "b").iterdir())
        assert b"correct-horse" not in kept
        assert broker.url.split(":")[2].split("@")[0].encode() not in kept
        assert "@" not in broker.address


def test_passwords_require_mosquitto(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:x\n")
    with pytest.raises(
        LinkError,
        match=r"broker\.passwords requires mosquitto",
    ):
        brokers.start(port=0, kind="embedded", directory=tmp_path / "b", clients=tmp_path / "users")
    assert not (tmp_path / "b").exists()


@needs_mosquitto
def test_the_error_of_a_broker_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(
        LinkError, match=r"(?s)mosquitto .* exited with status \d+; .*max_packet_size"
    ):
        brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=1)


@needs_mosquitto
def test_mosquitto_keeps_retained_messages_across_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    with brokers.start(port=0, kind="mosquitto", directory=folder) as broker:
        link = open_link(broker.address, "a")
        link.publish("x", b"kept", retain=True)
        link.close()
    with brokers.start(port=0, kind="mosquitto", directory=folder) as broker:
        link = open_link(broker.address, "a")
        link.subscribe("x")
        delivery = link.receive(5)
        link.close()
        assert delivery is not None
        assert (delivery.payload, delivery.retained) == (b"kept", True)
