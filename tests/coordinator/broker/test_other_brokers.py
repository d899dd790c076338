"""Brokers of other projects: RabbitMQ, which turns '.' in topics into '/' and sends no retained
message to a wildcard, NATS, and a mosquitto with the documented limits of each other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.parts.broker_kinds import find_missing
from benchmarks.faults.parts.brokers import open_broker
from coordinator.broker.broker_profiles import PROFILES
from coordinator.broker.external_broker_checks import examine_broker
from federated.errors import LinkError
from federated.wire import topics
from federated.wire.checks.check_result import format_check
from tests.support.brokers import Limited, open_limited
from tests.support.links import open_links, wait_for_delivery
from tests.support.processes import AGENT, COORDINATOR, Start, result

pytestmark = [pytest.mark.broker, pytest.mark.processes, pytest.mark.slow]
REAL = ("rabbitmq", "nats")
SETTINGS = {"aws": ("http.listen=127.0.0.1:0",)}  # what a profile requires
MISSING = {
    "aws": {"levels": "fail", "length": "warn", "packets": "warn"},
    "rabbitmq": {"wildcards": "warn"},
}


@pytest.fixture(scope="module", params=PROFILES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def limited(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp(kind)
    if missing := find_missing(kind if kind in REAL else "mosquitto"):
        pytest.skip(f"{missing} is not installed")
    if kind in REAL:
        with open_broker(folder, kind) as address:
            yield Limited(address, None)
        return
    with open_limited(folder, PROFILES[kind]) as opened:
        yield opened


@pytest.fixture
def broker(limited: Limited) -> str:
    return limited.address


def test_agents_find_a_run_and_finish_its_rounds(
    tmp_path: Path, start: Start, kind: str, limited: Limited
) -> None:
    broker = limited.address
    settings = (
        *("method.widths=[0.25,0.5]", "method.depths=[1]", "train.epochs=1", "fleet.wait=90"),
        *(f"broker.profile={kind}", *SETTINGS.get(kind, ())),
    )
    coordinator = start(
        *(*COORDINATOR, "start", "--broker", broker, "--method", "fedfa", "--min-agents", "2"),
        *("--rounds", "2", "--format", "json"),
        *(part for setting in settings for part in ("--set", setting)),
    )
    agents = [
        start(
            *(*AGENT, "join", "--broker", broker, "--name", f"a{i}", "--wait", "90"),
            *("--data", "digits", "--shard", f"{i}/2", "--seed", "0", "--format", "json"),
        )
        for i in range(2)
    ]
    assert result(coordinator, 240)["rounds"] == 2
    assert [result(agent)["updates"] for agent in agents] == [2, 2]
    told = (tmp_path / "0.err").read_text()
    said = "retained messages do not reach a subscription with a wildcard"
    assert (said in told) == ("wildcards" in MISSING.get(kind, {}))
    assert "slashes" not in told
    assert ("over http://127.0.0.1:" in told) == (kind in SETTINGS)
    assert (limited.rates is not None) == (PROFILES[kind].messages is not None and kind not in REAL)
    assert limited.rates is None or not limited.rates.discarded


def test_the_doctor_says_what_is_missing(kind: str, broker: str) -> None:
    found = {check.name: check for check in examine_broker(broker, None)}
    missing = {name: check.state for name, check in found.items() if check.state != "ok"}
    assert missing == MISSING.get(kind, {}), [format_check(check) for check in found.values()]


@pytest.mark.parametrize("kind", ["rabbitmq"], indirect=True)
def test_a_name_with_a_dot_ends_a_link_with_a_reason(broker: str) -> None:
    with open_links(broker, "a") as (link,):
        topic = topics.status("r", "pi.local")
        link.subscribe(topic)
        link.publish(topic, b"1")
        with pytest.raises(LinkError, match=r"turns '\.' in topics into '/'"):
            wait_for_delivery(link, topic)
