"""The metrics server: addresses, certificates and counters."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.access.certificate_authority import Authority
from coordinator.cli.main import main
from coordinator.observe.event_readers import prometheus_metrics
from coordinator.observe.event_readers.prometheus_metrics import REFUSALS, MetricsServer, RunMeter
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import AgentRefused, Rejected
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Metrics
from federated.errors import ConfigError, LinkError


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
        with urllib.request.urlopen(server.address, context=known, timeout=60) as answer:
            page = answer.read()
            assert b"espalier_rounds_total 0.0" in page
            assert b"espalier_rounds_wanted 7.0" in page  # also while agents are awaited
        # how it breaks off is OpenSSL's matter
        with (
            pytest.raises(OSError),  # noqa: PT011
            urllib.request.urlopen(server.address, context=stranger, timeout=60),
        ):
            pass


def test_rejected_messages_are_counted_by_known_kinds(
    tmp_path: Path,
) -> None:
    with contextlib.closing(MetricsServer(Metrics(listen="127.0.0.1:0"))) as server:
        meter = RunMeter(ReaderContext(tmp_path, Config(), lambda: 0.0), server.registry)
        for kind in ("size", "update", "update", "answered"):
            meter.read(Rejected(kind, "pi", "reason", "pi", "t"))
        meter.read(AgentRefused("pi", "reason"))
        with urllib.request.urlopen(server.address, timeout=60) as answer:
            found = answer.read().decode()
    counted = dict(re.findall(r'espalier_rejects_total\{reason="(\w+)"\} ([0-9.]+)', found))
    assert {kind: float(count) for kind, count in counted.items()} == dict.fromkeys(
        REFUSALS, 0.0
    ) | {"size": 1, "update": 2, "joining": 1}


@pytest.mark.parametrize(
    ("limit", "source"), [("MAX_RATE", "127.0.0.1"), ("MAX_RATE_IN_ALL", "127.0.0.2")]
)
def test_tls_handshakes_of_strangers_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, source: str
) -> None:
    """They take time from the run, whose process this is."""
    monkeypatch.setattr(prometheus_metrics, limit, 0.02)  # one in 50 seconds
    made = Authority(tmp_path / "pki")
    made.close()
    wanted = Metrics(
        listen="127.0.0.1:0", certificate=str(made.server), key=str(made.server), ca=str(made.ca)
    )
    context = ssl.create_default_context(cafile=str(made.ca))
    with contextlib.closing(MetricsServer(wanted)) as server:
        port = int(server.address.rpartition(":")[2].partition("/")[0])

        def shake_hands(source: str) -> None:
            plain = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
            with plain, context.wrap_socket(plain, server_hostname="localhost"):
                pass

        shake_hands("127.0.0.1")
        with pytest.raises(OSError, match=r"EOF|reset"):
            shake_hands(source)


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
        silent = socket.create_connection(
            ("127.0.0.1", int(server.address.rpartition(":")[2].partition("/")[0]))
        )
        with urllib.request.urlopen(server.address, context=known, timeout=60) as answer:
            assert answer.status == 200
    silent.close()
