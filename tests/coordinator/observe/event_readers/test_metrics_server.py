"""The metrics server: addresses, certificates, and its process."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.floods.attacker import Attacker, Order
from coordinator.access.certificate_authority import Authority
from coordinator.cli.main import main
from coordinator.observe.event_readers import metrics_server
from coordinator.observe.event_readers.metrics_server import MetricsServer
from coordinator.observe.event_readers.prometheus_metrics import RunMeter
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import RoundStarted
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Metrics
from federated.errors import ConfigError, LinkError
from federated.runtime.connection_limits import listen
from federated.runtime.server_process import ServerProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.processes]


def get(address: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(address, timeout=60, context=context) as answer:
        return str(answer.read().decode())


def wait_for(line: str, address: str, context: ssl.SSLContext | None = None) -> None:
    """Wait until the metrics have a line, with fewer requests than the server's limit."""
    until = time.monotonic() + 90
    while line not in get(address, context):
        assert time.monotonic() < until
        time.sleep(0.5)


def get_port(server: MetricsServer) -> int:
    return int(server.address.rpartition(":")[2].partition("/")[0])


def test_listening_beyond_loopback_requires_certificates() -> None:
    with pytest.raises(
        ConfigError, match=r"opens the metrics to the network: set metrics.certificate"
    ):
        MetricsServer(Metrics(listen="0.0.0.0:0"))


@pytest.mark.parametrize(
    "listen", ["", "here", "127.0.0.1:x", "127.0.0.1:99999", "no.such.host.invalid:1"]
)
def test_invalid_addresses_are_rejected(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics.listen: expected"):
        MetricsServer(Metrics(listen=listen))


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LinkError, match="choose another port"):
            MetricsServer(Metrics(listen=listen))


@pytest.mark.parametrize("command", ["start", "simulate"])
def test_a_wrong_address_fails_before_a_broker_or_a_run_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('name = "r"\n')
    words = ["start", "--config", "run.toml"] if command == "start" else ["simulate", "run.toml"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for listen, code in (
            (f"127.0.0.1:{taken.getsockname()[1]}", 5),
            ("9464 please", 3),
            ("0.0.0.0:0", 3),
        ):
            done = CliRunner().invoke(main, [*words, "--set", f"metrics.listen={listen}"])
            assert done.exit_code == code
            assert re.fullmatch(r"(reading.*\n|simulated.*\n)*error: metrics.*\n", done.output), (
                done.output
            )
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_missing_and_unusable_files_are_errors(tmp_path: Path) -> None:
    there = tmp_path / "there.pem"
    there.write_text("nothing")
    wanted = Metrics(
        listen="127.0.0.1:0", certificate=str(there), key=str(there), ca=str(tmp_path / "missing")
    )
    with pytest.raises(ConfigError, match="missing does not exist"):
        MetricsServer(wanted)
    wanted = Metrics(listen="127.0.0.1:0", certificate=str(there), key=str(there), ca=str(there))
    with pytest.raises(ConfigError, match="do not match"):
        MetricsServer(wanted)


def test_only_clients_with_a_certificate_are_served(tmp_path: Path) -> None:
    made = Authority(tmp_path / "pki")
    made.close()
    wanted = Metrics(
        listen="127.0.0.1:0", certificate=str(made.server), key=str(made.server), ca=str(made.ca)
    )
    stranger = ssl.create_default_context(cafile=str(made.ca))
    known = ssl.create_default_context(cafile=str(made.ca))
    known.load_cert_chain(made.coordinator)
    server = MetricsServer(wanted)
    RunMeter(ReaderContext(tmp_path, Config(rounds=7), lambda: 0.0), server.registry)
    assert server.address.startswith("https://127.0.0.1:")
    with contextlib.closing(server):
        wait_for(
            "espalier_rounds_wanted 7.0", server.address, known
        )  # also while agents are awaited
        assert "espalier_rounds_total 0.0" in get(server.address, known)
        # how it breaks off is OpenSSL's matter
        with (
            pytest.raises(OSError),  # noqa: PT011
            urllib.request.urlopen(server.address, context=stranger, timeout=60),
        ):
            pass


def test_a_silent_client_blocks_neither_other_clients_nor_shutdown(
    tmp_path: Path,
) -> None:
    made = Authority(tmp_path / "pki")
    made.close()
    wanted = Metrics(
        listen="127.0.0.1:0", certificate=str(made.server), key=str(made.server), ca=str(made.ca)
    )
    known = ssl.create_default_context(cafile=str(made.ca))
    known.load_cert_chain(made.coordinator)
    with contextlib.closing(MetricsServer(wanted)) as server:
        silent = socket.create_connection(("127.0.0.1", get_port(server)))
        with urllib.request.urlopen(server.address, context=known, timeout=60) as answer:
            assert answer.status == 200
    silent.close()


def test_later_counts_are_served(tmp_path: Path) -> None:
    with contextlib.closing(MetricsServer(Metrics(listen="127.0.0.1:0"))) as server:
        meter = RunMeter(ReaderContext(tmp_path, Config(), lambda: 0.0), server.registry)
        meter.read(RoundStarted(3, 5, {}))
        wait_for("espalier_round 3.0", server.address)


def test_a_flood_of_requests_takes_no_time_from_the_run(tmp_path: Path) -> None:
    with contextlib.closing(MetricsServer(Metrics(listen="127.0.0.1:0"))) as server:
        get(server.address)  # it has started
        child = next(
            one for one in psutil.Process().children() if metrics_server.__name__ in one.cmdline()
        )
        order = Order(
            "metrics: requests", max(os.sched_getaffinity(0)), get_port(server), ("", ""), 0
        )
        with contextlib.closing(Attacker(order, tmp_path / "log")) as attacker:
            served, own = sum(child.cpu_times()[:2]), time.process_time()
            attacker.start()
            eventually(lambda: sum(child.cpu_times()[:2]) - served > 2)
            assert "python_info" in get(server.address)
            assert time.process_time() - own < 0.5
            assert attacker.stop() > 0


def test_old_or_missing_metrics_are_not_served(tmp_path: Path) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text("espalier_round 1.0\n")
    process = ServerProcess(
        "metrics", metrics_server.__name__, listen("127.0.0.1", 0), [str(file), "", "", ""]
    )
    with contextlib.closing(process):
        address = f"http://127.0.0.1:{process.port}/metrics"
        assert get(address) == "espalier_round 1.0\n"
        os.utime(file, (0, 0))
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(address)
        file.unlink()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(address)
