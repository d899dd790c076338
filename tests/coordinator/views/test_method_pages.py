"""Output of `coordinator methods` for every method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.views.method_pages import describe_method, render_method
from federated.method import LAWS, MODES, configure
from federated.methods.catalogue import METHODS, find_method
from tests.support.toy_extensions import MEMBERS

PROMISED = [
    "allsmall",
    "depthfl",
    "dynamicfl",
    "exclusivefl",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedfa",
    "fedfa-d",
    "fedfa-w",
    "fednova",
    "fedprox",
    "fedrolex",
    "fedyogi",
    "fjord",
    "flexifed",
    "heterofl",
    "inclusivefl",
    "inco-avg",
    "inco-moon",
    "inco-nova",
    "inco-prox",
    "inco-scaffold",
    "moon",
    "nefl-d",
    "nefl-do",
    "nefl-w",
    "nefl-wd",
    "recipfl",
    "scaffold",
    "scalefl",
]


def run_methods(*words: str) -> str:
    done = CliRunner().invoke(main, ["methods", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("forgotten_extensions")
def test_every_method_is_listed_with_its_paper() -> None:
    listed = json.loads(run_methods("--format", "json"))
    assert [one["name"] for one in listed] == sorted(METHODS)
    assert set(PROMISED) <= set(METHODS)
    assert all(one["summary"] and one["paper"] for one in listed)
    text = run_methods()
    assert all(f"{name} " in text for name in PROMISED)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_explained_with_its_settings_and_laws(name: str) -> None:
    found = json.loads(run_methods(name, "--format", "json"))
    assert found == json.loads(json.dumps(describe_method(name)))
    assert found["settings"].keys() == find_method(name).settings.keys()
    assert all(known["help"] for known in found["settings"].values())
    assert found["laws"].keys() == LAWS.keys()
    assert found["modes"].keys() == MODES.keys() >= find_method(name).forbids.keys()
    assert all(
        bool(why) == (mode not in find_method(name).allows) for mode, why in found["modes"].items()
    )
    defaults = {key: known["default"] for key, known in found["settings"].items()}
    assert {*configure(find_method(name), defaults).__struct_fields__} == {
        *defaults,
        "seed",
        "rounds",
    }, "defaults are valid settings"
    text = run_methods(name)
    assert all(f"{key} = " in text for key in defaults)
    assert text.strip() == render_method(describe_method(name)).strip()
    assert max(map(len, text.splitlines())) <= 150


def test_an_unknown_method_suggests_the_nearest() -> None:
    done = CliRunner().invoke(main, ["methods", "fedrol"])
    assert done.exit_code == 2
    assert "unknown method 'fedrol'; did you mean fedrolex" in done.output


@pytest.mark.parametrize(
    ("name", "trains"),
    [
        ("depthfl", "PyTorch, or training graphs"),
        ("fedfa", "any trainer"),
        ("heterofl", "any trainer"),
        ("moon", "requires PyTorch"),
    ],
)
def test_a_survey_alone_asks_for_no_pytorch(name: str, trains: str) -> None:
    """FedFA's may score its sizes on a device, which gets the largest if it cannot."""
    assert describe_method(name)["trains"] == trains


def test_laws_and_modes_of_a_method_of_ones_own_are_not_tested_and_the_command_is_shown() -> None:
    """The project's tests check the laws of the built-in methods only."""
    name = MEMBERS["espalier.methods"]
    own = render_method(describe_method(name))
    laws, _, modes = own.partition("Modes of the aggregation")
    assert laws.count("not tested:") == len(LAWS) - laws.count("does not hold:")
    assert modes.count("not tested:") == len(MODES) - modes.count("not supported:")
    assert f"TRY_METHOD={name} pytest" in own
    assert "test" not in render_method(describe_method("fedavg")).partition("Laws")[2]


def test_laws_of_a_method_of_ones_own_with_a_built_in_name_are_shown_as_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from federated.methods.fedavg import fedavg\n\n\ndef make():\n    return fedavg()\n"
    (tmp_path / "same_name.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert "not tested:" in render_method(describe_method("same_name:make"))
