"""Documented limits of brokers: settings that contradict them, and links that obey them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from coordinator.broker import external_broker_checks
from coordinator.broker import local_broker as brokers
from coordinator.broker.broker_profiles import PROFILES, Profile, check_profile
from coordinator.release.rollout import open_run_link
from coordinator.run.launch import choose_workers
from coordinator.run.runner import read_rules
from coordinator.settings.config import load
from coordinator.settings.service_tables import ProfileName
from federated.errors import ConfigError, LinkError
from federated.methods.catalogue import find_method
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from tests.support.memory_federation import RUN, Member, digits, federate

URL = {"broker.url": "mqtts://broker"}
AWS = {**URL, "broker.profile": "aws", "http.listen": "127.0.0.1:0"}
EMQX = {"broker.profile": "emqx"}
OTHERS = [{**URL, "broker.profile": name} for name in PROFILES if name != "aws"]


def test_each_name_has_a_profile() -> None:
    assert tuple(PROFILES) == get_args(ProfileName)


@pytest.mark.parametrize("settings", [{}, AWS, {**AWS, "name": "x" * 40}, *OTHERS])
def test_settings_may_agree_with_a_profile(settings: dict[str, Any]) -> None:
    check_profile(load(None, {}, settings.items()))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"broker.profile": "emqx"}, "existing broker"),
        ({**AWS, "http.listen": ""}, r"7 slashes.* 8: .*http\.listen"),
        ({**AWS, "http.above": 1}, r"http\.above = 0"),
        ({**AWS, "wire.chunk": 128 << 10}, r"wire\.chunk of at most 126976, found 131072"),
        ({**AWS, "name": "x" * 41}, "at most 40 characters"),
        ({**URL, "broker.profile": "rabbitmq", "name": "a.b"}, r"without '\.'"),
    ],
)
def test_a_setting_that_contradicts_a_profile_is_an_error(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^broker.profile = .*{said}"):
        check_profile(load(None, {}, settings.items()))


def test_a_run_repeats_its_card_for_a_profile_without_retained_messages_to_wildcards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(external_broker_checks, "try_basics", lambda place: [])
    with contextlib.closing(open_link("memory://any", "coordinator")) as link:
        assert [
            name
            for name, profile in PROFILES.items()
            if external_broker_checks.adapt(link, "mqtt://broker", "r", print, profile=profile)
        ] == ["aws", "rabbitmq"]


@pytest.mark.broker
def test_a_link_obeys_the_limits_of_a_profile(tmp_path: Path) -> None:
    limited = Profile("", (), payload=50_000, messages=100)
    topic = topics.status("r", "a")
    with (
        brokers.start(port=0, kind="embedded", directory=tmp_path) as broker,
        contextlib.closing(open_link(broker.address, "coordinator")) as link,
    ):
        external_broker_checks.adapt(link, broker.address, "r", print, profile=limited)
        assert (link.max_payload, link.max_chunk) == (32 << 10, 28 << 10)  # what was tried
        with pytest.raises(LinkError, match="over the broker's limit"):
            link.publish(topic, bytes(50_001))
        before = time.monotonic()
        for _ in range(21):
            link.publish(topic, b"1")
        assert time.monotonic() - before >= 20 / 100


def test_heartbeats_and_what_a_link_sends_stay_within_a_profile() -> None:
    settings = load(None, {}, AWS.items())
    rules = read_rules(find_method("fedavg"), settings, durable=True, timeouts=True)
    assert rules.beats == 20  # of 100 messages, the coordinator sends 80
    plain = load(None, {}, URL.items())
    assert not read_rules(find_method("fedavg"), plain, durable=True, timeouts=True).beats


def test_workers_without_updates_over_mqtt_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    workers = {**AWS, "wire.workers": 2}
    assert choose_workers(load(None, {}, workers.items()), "mqtts://broker") is not None
    assert "leave out --workers" in caplog.text
    caplog.clear()
    choose_workers(load(None, {}, {**URL, "wire.workers": 2}.items()), "mqtts://broker")
    assert caplog.text == ""


def test_releases_obey_the_profile_of_a_run(tmp_path: Path) -> None:
    """A broker need not state its limits, as this one does not."""
    settings = {"method.name": "fedavg", "model.name": "mlp-small", "data.name": "digits"}
    small = {"rounds": 1, "train.steps": 1, "evaluate.devices": False}
    federate(tmp_path, [Member("a0", digits(0, 1))], {**settings, **small, **URL, **EMQX})
    with (
        brokers.start(port=0, directory=tmp_path / "broker") as broker,
        contextlib.closing(open_run_link(RUN, broker.address, tmp_path / "runs")) as link,
    ):
        assert link.max_payload == PROFILES["emqx"].payload
