"""Checks of a configuration before a run: its name, its settings, its folder."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from coordinator import audit_log
from coordinator.run.config_sources import ConfigSources
from coordinator.run.launch import View, start_run
from coordinator.run.run_preparation import check_broker, find_name, prepare
from coordinator.run.stored_configuration import check_same
from coordinator.settings.config import load
from coordinator.settings.service_tables import Broker
from coordinator.store.run_folders import DATABASE
from coordinator.store.run_store import Store
from coordinator.views.run_status import describe_status
from federated.errors import ConfigError, LinkError, StoreError, UsageError
from federated.wire import topics
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.processes import COORDINATOR, Start, wait_for_words


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits", "fedfa-digits"),
        ("a b/my images.zip", "fedfa-my-images"),
        ("prices (1).csv:price in €", "fedfa-prices-1"),
        ("my.module:function", "fedfa-my"),
        ("x" * 99 + ".npz", "fedfa-" + "x" * 42),
    ],
)
def test_the_default_name_of_a_run_is_a_valid_topic_level(
    tmp_path: Path, data: str, name: str
) -> None:
    found = find_name(load(None, {}, [("data.name", data)]), tmp_path)
    assert found == name
    assert topics.run(found)


@pytest.mark.parametrize(
    ("method", "model", "settings", "said"),
    [
        (
            "depthfl",
            "mlp",
            {},
            "method depthfl: model 'mlp' has no exits; models that have: preresnet, resnet",
        ),
        (
            "nefl-d",
            "vgg",
            {},
            "method nefl-d: model 'vgg' has no steps; models that have: .*resnet",
        ),
        (
            "moon",
            "densenet-small",
            {},
            "method moon: model 'densenet' has no projection; models that have: .*lenet",
        ),
        (
            "fedfa",
            "resnet-small",
            {"method.depths": [[1, 2]]},
            "method fedfa: submodels: expected widths .* one for each of 3 sections",
        ),
        (
            "dynamicfl",
            "resnet-small",
            {"method.branches": 9},
            "^setting 'branches' of dynamicfl: expected at most 5 for resnet, found 9",
        ),
    ],
)
def test_an_unsupported_network_or_size_is_refused_before_the_run(
    tmp_path: Path, method: str, model: str, settings: dict[str, object], said: str
) -> None:
    config = load(
        None,
        {},
        [("name", "run"), ("method.name", method), ("model.name", model), *settings.items()],
    )
    with pytest.raises(ConfigError, match=said):
        prepare(config, tmp_path, resume=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "method.mu",
            "unknown fedavg setting 'mu'; known: .*; a setting of fednova, fedprox, "
            "inco-moon, inco-nova, inco-prox, moon",
        ),
        (
            "method.rounds",
            "unknown fedavg setting 'rounds'; known: .*; did you mean rounds, above "
            "the first table?",
        ),
        (
            "train.fraction",
            "unknown fedavg setting 'fraction';.* known: .*; did you mean fleet.fraction?",
        ),
        ("train.nonsense", "unknown fedavg setting 'nonsense'; known: [^;]*$"),
    ],
)
def test_the_error_of_a_misplaced_setting_names_its_place(
    tmp_path: Path, key: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(
            load(None, {}, [("name", "run"), ("method.name", "fedavg"), (key, 1)]),
            tmp_path,
            resume=False,
        )


def test_a_private_run_on_data_of_the_agents_is_refused_before_agents_connect(
    tmp_path: Path,
) -> None:
    given = [("method.name", "fedavg"), ("private.noise", 1.0), ("private.clip", 1.0)]
    with pytest.raises(ConfigError, match=r"deviation of the devices' data"):
        prepare(
            load(None, {}, [("name", "run"), ("data.name", "agents"), *given]),
            tmp_path,
            resume=False,
        )
    assert not list(tmp_path.iterdir())


def test_an_invalid_constraint_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"select 'memry>2GB', character 1: unknown key 'memry'; did you mean memory",
    ):
        prepare(
            load(None, {}, [("name", "r"), ("fleet.select", "memry>2GB")]), tmp_path, resume=False
        )
    assert not list(tmp_path.iterdir())


def test_or_resume_requires_a_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--name"):
        start_run(ConfigSources(), tmp_path, View(print), or_resume=True)
    assert not list(tmp_path.iterdir())


def test_a_second_coordinator_is_refused_although_the_metrics_address_is_taken(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = load(
            None, {}, [("name", "r"), ("metrics.listen", f"127.0.0.1:{other.getsockname()[1]}")]
        )
        with pytest.raises(LinkError, match="metrics cannot be served"):
            prepare(config, tmp_path, resume=False)
        assert not list(tmp_path.iterdir())
        first = Store.create(tmp_path, "r")
        with pytest.raises(StoreError, match="another coordinator holds run 'r'"):
            prepare(config, tmp_path, resume=True)
        first.close()
        with pytest.raises(LinkError, match="metrics cannot be served"):
            prepare(config, tmp_path, resume=True)
        Store.open(tmp_path, "r").close()  # the failure released its lock


def test_the_error_of_a_changed_method_names_the_defaults() -> None:
    with pytest.raises(ConfigError, match=r"method.name: expected its default, found 'fedavg'"):
        check_same(load(None, {}, []), load(None, {}, [("method.name", "fedavg")]))


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
def test_a_mechanism_without_effect_is_reported_before_agents_connect(
    tmp_path: Path, start: Start
) -> None:
    """`coordinator start` names the remedy while it waits."""
    process = start(
        *COORDINATOR,
        "start",
        "--method",
        "fedfa",
        "--port",
        "0",
        "--set",
        "method.choice=zico",
        "--set",
        "method.scaling=none",
    )
    assert wait_for_words(
        process,
        tmp_path / "0.err",
        "fedfa: scaling = 'none' does not scale layers to one norm: set method.scaling",
    )
    assert wait_for_words(process, tmp_path / "0.err", "fedfa: choice = 'zico' without a budget")
    assert process.poll() is None


def test_a_resumed_run_cannot_have_fewer_rounds_than_it_finished(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    quick = {"method.name": "fedavg", "method.widths": [0.25], "train.steps": 1}
    federate(tmp_path, members, {**quick, "fleet.min_agents": 2, "rounds": 2})
    runs = tmp_path / "runs"
    with pytest.raises(ConfigError, match=r"rounds: expected at least the 2 .* found 1"):
        start_run(
            ConfigSources(flags=[("name", RUN), ("rounds", 1)]), runs, View(print), resume=True
        )
    assert describe_status(RUN, runs)["rounds"] == 2


def test_the_audit_log_names_the_settings_that_a_resumed_run_changes(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    quick = {"method.name": "fedavg", "method.widths": [0.25], "train.steps": 1}
    federate(tmp_path, members, {**quick, "fleet.min_agents": 2, "rounds": 1})
    runs = tmp_path / "runs"
    url = "memory://USER:secret@audit"
    flags = [("name", RUN), ("broker.url", url), ("fleet.wait", 77.0)]
    start_run(ConfigSources(flags=flags), runs, View(print), resume=True)
    (row,) = audit_log.read(runs / RUN / DATABASE)[0]
    assert (row.what, row.place) == ("resume", "command line")
    assert {"broker.url", "fleet.wait"} <= set(row.about.removeprefix("changed: ").split(", "))
    assert not {"broker.hosts", "observe.readers", "simulate.seeds"} & set(
        row.about.removeprefix("changed: ").split(", ")
    )
    assert "secret" not in row.about
    start_run(ConfigSources(flags=[("name", RUN)]), runs, View(print), resume=True)
    assert audit_log.read(runs / RUN / DATABASE)[0][-1].about == ""


@pytest.mark.parametrize("key", ["listen", "port", "passwords", "kind"])
def test_settings_of_a_started_broker_are_refused_beside_an_existing_one(key: str) -> None:
    value = {"listen": "0.0.0.0", "port": 1884, "passwords": "p", "kind": "embedded"}[key]
    with pytest.raises(ConfigError, match=rf"broker\.{key} .*broker\.url"):
        check_broker(msgspec.convert({"url": "mqtt://h", key: value}, Broker))


def test_the_enrolment_server_may_listen_beside_an_existing_broker() -> None:
    check_broker(Broker(url="mqtts://h", tls=True, listen="0.0.0.0"))
