"""Assignments of submodels to devices from their profiles alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.offline_assignment import assign_offline, render
from federated.device import profile_file
from federated.device.profile_file import Calibration, Sheet
from federated.errors import ConfigError, StoreError
from federated.task import Card, Profile, Timing
from models.cost import cost
from models.menu import probes
from models.named_network import network
from tests.support.terminal import run_on_terminal

NOTHING = Card("no data", (), "uint8", 0, 0, 0, (), ())
DIGITS = Card("digits", (1, 8, 8), "uint8", 10, 320, 80, (5.0,), (6.0,))


def write_profile(
    folder: Path,
    name: str,
    speed: float = 1.0,
    memory: int = 10**9,
    data: Card = NOTHING,
    labels: tuple[str, ...] = (),
) -> Path:
    """Write the profile of a device with step times of its multiply-adds divided by its speed."""
    made = network("preresnet", (3, 32, 32), 10)
    timings = tuple(Timing(s, 32, cost(s).macs * 32 / (speed * 1e10)) for s in probes(made, (1, 4)))
    profile = Profile(name, "h", "Linux", speed, memory, 0.0, 0, "torch 2", data, (), labels=labels)
    profile_file.write(
        Sheet(profile, (Calibration("preresnet", "torch", "train", 1, timings),)),
        folder / f"{name}.json",
    )
    return folder / f"{name}.json"


def assign(
    files: list[Path], flags: dict[str, Any] | None = None, examples: int | None = None
) -> dict[str, Any]:
    return assign_offline(files, ConfigSources(flags=list((flags or {}).items())), examples)


@pytest.mark.slow
def test_the_slower_device_gets_the_smaller_submodel_and_every_offer_is_listed(
    tmp_path: Path,
) -> None:
    made = assign([write_profile(tmp_path, "fast"), write_profile(tmp_path, "slow", 0.5)])
    fast, slow = made["agents"]
    assert (fast["id"], fast["submodel"]) == ("fast", "w1-d4.4.4")
    assert fast["reason"].startswith("the largest submodel: ")
    sizes = {offer["submodel"]: offer["parameters"] for offer in slow["offers"]}
    assert len(sizes) == 9
    assert sizes[slow["submodel"]] < sizes["w1-d4.4.4"]
    assert slow["reason"].startswith("the largest that keeps the pace: ")
    chosen = next(offer for offer in slow["offers"] if offer["submodel"] == slow["submodel"])
    assert chosen["in_time"]
    assert chosen["seconds"] == pytest.approx(5 * 32 * chosen["step"], rel=1e-6), (
        "five passes over 1000 examples in batches of 32; no link was measured"
    )
    assert made["network"]["inputs"] == (3, 32, 32), "the data of its measurement"


def test_a_fleet_of_one_device_is_named_as_such_unless_a_deadline_limits_it(tmp_path: Path) -> None:
    file = write_profile(tmp_path, "d")
    assert "fleet of one device" in render(assign([file]))
    assert "fleet of one device" not in render(assign([file], {"fleet.deadline": 60.0}))


def test_a_deadline_counts_the_given_number_of_examples(tmp_path: Path) -> None:
    file = write_profile(tmp_path, "d")
    few, many = (
        assign([file], {"fleet.deadline": 40.0}, examples)["agents"][0] for examples in (64, 4000)
    )
    assert few["submodel"] == "w1-d4.4.4"
    assert many["submodel"] != "w1-d4.4.4"
    assert "the largest that meets the deadline: " in many["reason"]


def test_memory_limits_the_submodel(tmp_path: Path) -> None:
    files = [
        write_profile(tmp_path, "little", memory=100 * 10**6),
        write_profile(tmp_path, "none", memory=10**6),
    ]
    little, nothing = assign(files)["agents"]
    assert "the largest that fits memory: " in little["reason"]
    assert nothing["submodel"] is None
    assert nothing["reason"].startswith("no submodel fits its memory: w0.5-d2.2.2 needs ")


@pytest.mark.slow
def test_the_network_is_for_named_data_else_for_those_of_the_measurement(
    tmp_path: Path,
) -> None:
    own = write_profile(tmp_path, "own", data=DIGITS)
    made = assign([own])
    assert made["network"]["inputs"] == (1, 8, 8)
    assert made["agents"][0]["examples"] == 320
    named = assign([write_profile(tmp_path, "bare")], {"data.name": "digits"})
    assert named["network"]["inputs"] == (1, 8, 8)


def test_an_excluded_device_has_a_reason(tmp_path: Path) -> None:
    made = assign(
        [
            write_profile(tmp_path, "a", labels=("eu",)),
            write_profile(tmp_path, "b", labels=("us",)),
        ],
        {"fleet.select": "label=eu"},
    )
    assert [one["submodel"] for one in made["agents"]] == ["w1-d4.4.4", None]
    assert made["agents"][1]["reason"] == "not selected: label=eu not met: it has us"
    assert (
        "b: 1 cpus, 1 GB, uplink not measured, so transfers count as 0 s, 1000 "
        "examples\n  gets nothing: not selected" in render(made)
    )


def test_groups_are_read_from_the_authority_and_not_from_the_device(tmp_path: Path) -> None:
    """The device in the group may lack the label, and another may claim it."""
    files = [write_profile(tmp_path, "a"), write_profile(tmp_path, "b", labels=("eu",))]
    settings = {"fleet.select": "group=eu", "broker.tls": True, "broker.pki": str(tmp_path / "pki")}
    with pytest.raises(StoreError, match=r"no certificate authority in .*pki"):
        assign(files, settings)
    assert not (tmp_path / "pki").exists()
    enrolled = ["enroll", "a", "--group", "eu", "--pki", str(tmp_path / "pki"), "--host", "h"]
    assert CliRunner().invoke(main, enrolled).exit_code == 0
    made = assign(files, settings)
    assert [one["submodel"] for one in made["agents"]] == ["w1-d4.4.4", None]
    assert made["agents"][1]["reason"] == "not selected: group=eu not met: it has none"
    with pytest.raises(ConfigError, match="keeps the groups, and this run has none"):
        assign(files, {**settings, "broker.tls": False})


def test_the_error_of_an_unmeasured_family_names_measured_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"a: no timings of 'vit', only of preresnet; run edge-agent profile --family vit",
    ):
        assign([write_profile(tmp_path, "a")], {"model.name": "vit"})


def test_two_devices_of_one_name_are_refused(tmp_path: Path) -> None:
    file = write_profile(tmp_path, "a")
    with pytest.raises(
        ConfigError, match="expected profiles of different devices, found two of 'a'"
    ):
        assign([file, file])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["assign"], 2, "Missing option '--profile'"),
        (["assign", "--profile", "none.json"], 3, "none.json: cannot be read"),
        (["assign", "--profile", "a.json", "--method", "fedva"], 2, "unknown method 'fedva'"),
        (["assign", "--profile", "a.json", "--model", "vitt"], 3, "no timings of 'vitt'"),
        (["assign", "--profile", "a.json", "--examples", "0"], 2, "--examples"),
        (["assign", "--profile", "a.json", "--select", "label"], 3, "expected one of = !="),
        (
            ["assign", "--profile", "a.json", "--set", "assign.submodels={a='w9'}"],
            3,
            "unknown submodel 'w9'",
        ),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else None,
)
def test_errors_have_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    write_profile(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, words in done.output) == (code, True), done.output


def test_the_command_prints_json_and_marks_the_chosen_submodel(tmp_path: Path) -> None:
    file = str(write_profile(tmp_path, "a"))
    as_json = json.loads(
        CliRunner().invoke(main, ["assign", "--profile", file, "--format", "json"]).output
    )
    assert as_json["agents"][0]["submodel"] == "w1-d4.4.4"
    lines = CliRunner().invoke(main, ["assign", "--profile", file]).output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["w1-d4.4.4"]


def test_pins_are_respected(tmp_path: Path) -> None:
    made = assign([write_profile(tmp_path, "a")], {"assign.submodels": {"a": "w0.5-d2.2.2"}})
    assert (made["agents"][0]["submodel"], made["agents"][0]["reason"]) == (
        "w0.5-d2.2.2",
        "pinned by assign.submodels",
    )


def test_a_profile_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path, "a")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match="expected format 1, found 99"):
        assign([path])


@pytest.mark.processes
def test_a_terminal_shows_that_the_command_takes_time(tmp_path: Path) -> None:
    words = ["assign", "--profile", str(write_profile(tmp_path, "a"))]
    text = run_on_terminal(["coordinator.cli", *words], tmp_path)
    assert "predicting times and memory" in text
    assert text.index("predicting") < text.index("w1-d4.4.4")
