"""Each extension point accepts a foreign member as `module:attribute` and from an installed
package, and a name in a message imports nothing.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate
from coordinator.views.method_pages import describe_method, list_methods
from edge_agent.device.process_limits import Limits
from edge_agent.join.code_permission import check_run, load_own
from edge_agent.join.training_process_control import Job
from federated.data import loading as data
from federated.device.trainers.catalogue import open_trainer
from federated.errors import ConfigError, DataError, Refused, Unknown
from federated.methods.catalogue import find_loaded_hooks, find_loaded_method, find_method
from federated.wire.messages import Run
from models.extension_lookup import ExtensionPoint
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, full, parameters
from tests.support.memory_federation import RUN, Member, federate
from tests.support.plugins import install
from tests.support.processes import AGENT, COORDINATOR, Running, Start, result
from tests.support.tcp_link import TcpHub
from tests.support.toy_extensions import MEMBERS, doubled_loss
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("forgotten_extensions")
ROOT = Path(__file__).parents[1]
TOY = dict.fromkeys(MEMBERS, "toy")
# entry-point group -> files of the catalogue's folder that define no member
NO_MEMBERS = {
    "espalier.codecs": {"weights"},
    "espalier.data": {
        *("csv_tables", "custom_arrays", "download_progress", "given_data", "held_out_splits"),
        *("image_folders", "loading", "partition_algorithms", "partitions"),
    },
    "espalier.links": {
        *("address_check", "connection_error_messages", "disconnection_diagnosis"),
        *("mqtt_client_setup", "paho_client"),
    },
    "espalier.readers": {"metrics_server", "run_readers", "task_courses", "terminal_output"},
    "espalier.rules": {"arithmetic"},
    "espalier.trainers": {
        *("graph_checks", "graph_names", "graph_session", "onnx_network", "onnx_trainer"),
        *("pytorch_trainer", "reusable_networks"),
    },
}
NET = network("mlp", (4,), 2)
CARD = Run("r", "toy", "mlp", NET, (), 8, "s", menu=(full(NET),))


@pytest.fixture(params=["module", "package"])
def names(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Return entry-point group -> name of the toy member of its extension point, in either form."""
    if request.param == "module":
        return MEMBERS
    install_toys(tmp_path, monkeypatch)
    return TOY


def install_toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "toys", {group: {"toy": member} for group, member in MEMBERS.items()})
    monkeypatch.syspath_prepend(str(tmp_path))


def settings_of(names: dict[str, str]) -> dict[str, object]:
    """Return the settings of a short run with the toy member of each extension point of a
    coordinator.
    """
    return {
        "data.name": names["espalier.data"],
        "method.name": names["espalier.methods"],
        "method.widths": [0.5, 1.0],
        "model.name": f"{names['espalier.families']}-large",
        "observe.readers": [names["espalier.readers"]],
        "robust.rule": names["espalier.rules"],
        "robust.byzantine": 1,
        "wire.codec": names["espalier.codecs"],
        "train.steps": 3,
        "rounds": 2,
    }


def job(**given: str) -> Job:
    return replace(Job("a", "digits", None, "", "iid", 0, "cpu", "", Limits()), **given)


def test_a_run_has_a_member_of_each_extension_point_but_trainers(
    names: dict[str, str], tmp_path: Path
) -> None:
    """Agents get the method over a toy link, and train with its hooks, which the toy trainer cannot
    run: `test_example_plugin` trains with it.
    """
    shards = [
        data.load_device(names["espalier.data"], name=f"a{i}", shard=f"{i}/3", partition="iid")
        for i in range(3)
    ]
    codecs = ("raw", names["espalier.codecs"])
    done = federate(
        tmp_path,
        [Member(f"a{i}", shard, codecs=codecs) for i, shard in enumerate(shards)],
        settings_of(names),
        broker=f"{names['espalier.links']}://everything",
    )
    assert done.result.rounds == 2
    made = done.fleet.run.network
    assert made is not None
    assert (made.family, made.preset) == (names["espalier.families"], "large")
    assert done.fleet.run.method == names["espalier.methods"]
    counted = json.loads((tmp_path / "runs" / RUN / "counts.json").read_text())
    assert counted["RoundEnded"] == 2
    profiles = [agent.profile for agent in done.fleet.agents.values()]
    assert {one.survey["examples"] for one in profiles} == {len(shard.x) for shard in shards}


def test_simulated_devices_use_them_in_processes_of_their_own(
    names: dict[str, str], tmp_path: Path
) -> None:
    given = {**settings_of(names), "name": "toys", "simulate.agents": 3, "simulate.workers": 1}
    file = tmp_path / "toys.toml"
    file.write_text("")
    sources = ConfigSources(
        file, settings=[f"{key}={json.dumps(value)}" for key, value in given.items()]
    )
    said: list[str] = []
    simulate(sources, tmp_path / "runs", tmp_path / "out", resume=False, say=said.append)
    found = json.loads((tmp_path / "out" / "seed0.json").read_text())
    assert {one["name"] for one in found["submodels"]} == {"w0.5-d1", "w1-d1"}
    counted = json.loads((tmp_path / "runs" / "toys-seed0" / "counts.json").read_text())
    assert counted["RoundEnded"] == 2


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
def test_an_agent_runs_a_method_of_module_and_function_if_its_owner_named_it(
    tmp_path: Path, start: Start, broker: str
) -> None:
    named = MEMBERS["espalier.methods"], MEMBERS["espalier.families"], MEMBERS["espalier.codecs"]
    flags = ["--method", named[0], "--model", named[1]]
    more = [f"wire.codec={named[2]}", "train.steps=2", "fleet.wait=90"]
    coordinator = start(
        *(*COORDINATOR, "start", *flags, "--name", "toys", "--rounds", "1", "--min-agents", "1"),
        *(*("--broker", broker), *(word for one in more for word in ("--set", one))),
        *("--format", "json"),
    )

    def join(name: str, *words: str) -> Running:
        shard = ("--data", "digits", "--shard", "0/2", "--format", "json")
        return start(*AGENT, "join", "--broker", broker, "--name", name, *shard, *words)

    lacking = join("lacking", "--model", named[1])
    assert lacking.wait(PATIENCE) == 1
    text = (tmp_path / "1.err").read_text()
    assert f"join with --method {named[0]} if you trust" in text
    able = join("able", *flags, "--codec", named[2])
    assert result(able)["updates"] >= 1
    assert result(coordinator)["rounds"] == 1


@pytest.mark.slow
@pytest.mark.processes
def test_commands_meet_over_a_link_of_module_and_function(start: Start) -> None:
    """Two agents and a coordinator connect through a hub in this process, without a broker."""
    with closing(TcpHub()) as hub:
        address = hub.address.replace("toytcp", "tests.support.tcp_link:open_tcp_link")
        coordinator = start(
            *(*COORDINATOR, "start", "--broker", address, "--name", "hub", "--method", "fedavg"),
            *("--model", "mlp-small", "--rounds", "1", "--min-agents", "2"),
            *("--set", "train.steps=2", "--set", "fleet.wait=90", "--format", "json"),
        )
        agents = [
            start(
                *(*AGENT, "join", "--broker", address, "--name", f"a{i}", "--format", "json"),
                *("--data", "digits", "--shard", f"{i}/2"),
            )
            for i in range(2)
        ]
        assert [result(agent)["updates"] for agent in agents] == [1, 1]
        assert result(coordinator)["rounds"] == 1
    assert {"coordinator-hub", "hub-a0", "hub-a1"} <= set(hub.clients)


@pytest.mark.parametrize(
    ("card", "remedy"),
    [
        (CARD, "install the package"),
        (replace(CARD, method="elsewhere:toy"), "join with --method elsewhere:toy"),
        (
            replace(CARD, settings={"models": ["os:system"]}),
            "join with --model os:system",
        ),
        (
            replace(CARD, network=replace(NET, family="absent")),
            "'absent', which this device lacks: install the package",
        ),
    ],
    ids=["survey", "function", "setting", "family"],
)
def test_an_agent_names_missing_capabilities_at_join_and_imports_nothing(
    card: Run, remedy: str
) -> None:
    with pytest.raises(Refused, match=remedy):
        check_run(job(), msgspec.to_builtins(card))
    assert "elsewhere" not in sys.modules


def test_an_agent_has_the_hooks_of_its_owner_and_of_installed_packages(
    names: dict[str, str],
) -> None:
    name = names["espalier.methods"]
    if ":" in name:
        load_own(job(method=name))
    check_run(job(), msgspec.to_builtins(replace(CARD, method=name)))
    assert find_loaded_hooks("toy").loss is doubled_loss
    assert "hook:toy" in open_trainer("pytorch").capabilities
    assert find_loaded_method(name).name == name


def test_a_method_has_the_name_that_selects_it(names: dict[str, str]) -> None:
    name = names["espalier.methods"]
    assert find_method(name).name == describe_method(name)["name"] == name
    assert name in {one["name"] for one in list_methods()}
    assert "fedavg" in {one["name"] for one in list_methods()}


def test_a_function_that_makes_no_method_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"method 'os:getcwd' returned '.*'; expected a Method"):
        find_method("os:getcwd")
    with pytest.raises(ConfigError, match=r"method 'math:sqrt' takes \(x\), expected \(\)"):
        find_method("math:sqrt")


def test_a_family_has_presets_and_submodels(names: dict[str, str]) -> None:
    name = names["espalier.families"]
    made = network(name, (4,), 2)
    assert (made.family, made.preset) == (name, "small")
    small, large = menu(made, (0.5, 1.0), (1,))
    assert parameters(large) == 4 * 16 + 16 + 16 * 2 + 2
    assert build(small).state_dict()["linear.weight"].shape == (2, 8)
    with pytest.raises(LookupError) as caught:
        network(f"{name}-huge", (4,), 2)
    assert {name, f"{name}-small", f"{name}-large"} <= set(caught.value.args[1])


def test_a_network_of_a_package_that_is_missing_is_not_built() -> None:
    with pytest.raises(ValueError, match="model 'toy' is not on this machine: install"):
        build(full(replace(NET, family="toy")))


def test_data_are_named_in_each_way(names: dict[str, str]) -> None:
    found = data.load_device(names["espalier.data"], name="a")
    assert len(found.x) + len(found.x_held) == 200  # all of it: it is the device's own
    assert np.array_equal(found.y, found.x.sum(1) > 0)


def test_unknown_data_list_those_of_packages_and_how_to_name_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_toys(tmp_path, monkeypatch)
    with pytest.raises(Unknown, match=r"'tox'; did you mean toy.*module:function"):
        data.load("tox")
    with pytest.raises(DataError, match="no_such_module"):
        data.load("no_such_module:f")


def test_every_extension_point_has_a_toy_and_a_row_in_the_contributors_page() -> None:
    points = {point.group: point for point in extension_points()}
    assert points.keys() == MEMBERS.keys()
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = {
        cells[2]: cells
        for line in page.split("\n## Extension points\n")[1].splitlines()
        if line.startswith("| ") and (cells := [cell.strip(" `") for cell in line.split("|")[1:-1]])
    }
    del rows["entry points"]
    assert rows.keys() == points.keys()
    for noun, _, group, protocol, catalogue in rows.values():
        assert noun == points[group].noun
        assert (ROOT / protocol).is_file()
        assert group in (ROOT / catalogue).read_text()


@pytest.mark.parametrize("group", MEMBERS)
def test_every_file_of_a_member_is_in_the_catalogue(group: str) -> None:
    """A catalogue imports each file of its folder, except those that define no member. Ruff rejects
    an import that the catalogue's dict does not use.
    """
    path = next(path for path, point in find_catalogues() if point.group == group)
    folder = ".".join(path.parent.relative_to(ROOT).parts)
    beside = {one.stem for one in path.parent.glob("*.py")} - {"__init__", "catalogue"}
    found = {name.removeprefix(f"{folder}.").partition(".")[0] for name in list_imports(path)}
    assert beside - found == NO_MEMBERS.get(group, set())


def list_imports(path: Path) -> Iterator[str]:
    """Yield `module.name` of what a file imports from modules, within functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("group", MEMBERS)
def test_a_catalogue_is_one_sorted_dict(group: str) -> None:
    path = next(path for path, point in find_catalogues() if point.group == group)
    literals = [
        [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    (names,) = literals
    assert names
    assert names == sorted(names)


def extension_points() -> Iterator[ExtensionPoint]:
    """Yield the `ExtensionPoint` of every catalogue."""
    for _, point in find_catalogues():
        yield point


def find_catalogues() -> Iterator[tuple[Path, ExtensionPoint]]:
    """Yield the file and the `ExtensionPoint` of every catalogue."""
    for package in ("models", "federated", "export", "edge_agent", "coordinator"):
        for path in (ROOT / package).rglob("catalogue.py"):
            module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            if isinstance(found := getattr(module, "POINT", None), ExtensionPoint):
                yield path, found
