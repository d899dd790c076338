"""What measured devices would get, answered without any of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.simulate.offline_assignment import assign_offline, text
from federated.device import profile_file
from federated.device.profile_file import Calibration, Sheet
from federated.errors import ConfigError
from federated.task import Card, Profile, Timing
from models.cost import cost
from models.families.catalogue import network, probes

NOTHING = Card("no data", (), "uint8", 0, 0, 0, (), ())
DIGITS = Card("digits", (1, 8, 8), "uint8", 10, 320, 80, (5.0,), (6.0,))


def measured(
    folder: Path,
    name: str,
    speed: float = 1.0,
    memory: int = 10**9,
    data: Card = NOTHING,
    labels: tuple[str, ...] = (),
) -> Path:
    """The sheet of a device whose steps take as long as their multiply-adds, divided by its
    speed.
    """
    made = network("preresnet", (3, 32, 32), 10)
    timings = tuple(Timing(s, 32, cost(s).macs * 32 / (speed * 1e10)) for s in probes(made, (1, 4)))
    profile = Profile(name, "h", "Linux", speed, memory, 0.0, 0, "torch 2", data, (), labels=labels)
    profile_file.write(
        Sheet(profile, (Calibration("preresnet", "torch", "train", 1, timings),)),
        folder / f"{name}.json",
    )
    return folder / f"{name}.json"


def assigned(
    files: list[Path], flags: dict[str, Any] | None = None, examples: int | None = None
) -> dict[str, Any]:
    return assign_offline(files, None, {}, [], list((flags or {}).items()), examples)


def test_the_slower_device_gets_the_smaller_submodel_and_every_offer_is_listed(
    tmp_path: Path,
) -> None:
    made = assigned([measured(tmp_path, "fast"), measured(tmp_path, "slow", 0.5)])
    fast, slow = made["agents"]
    assert (fast["id"], fast["submodel"]) == ("fast", "w1-d4.4.4")
    assert fast["reason"].startswith("the largest of all: ")
    sizes = {offer["submodel"]: offer["parameters"] for offer in slow["offers"]}
    assert len(sizes) == 9
    assert sizes[slow["submodel"]] < sizes["w1-d4.4.4"]
    assert slow["reason"].startswith("the largest that keeps the pace: ")
    chosen = next(offer for offer in slow["offers"] if offer["submodel"] == slow["submodel"])
    assert chosen["in_time"]
    assert chosen["seconds"] == pytest.approx(5 * 32 * chosen["step"], rel=1e-6), (
        "five passes over 1000 examples by 32; no link was measured"
    )
    assert made["network"]["inputs"] == (3, 32, 32), "what it was timed with"


def test_a_deadline_counts_the_examples_that_a_device_is_said_to_have(tmp_path: Path) -> None:
    file = measured(tmp_path, "d")
    few, many = (
        assigned([file], {"fleet.deadline": 40.0}, examples)["agents"][0] for examples in (64, 4000)
    )
    assert few["submodel"] == "w1-d4.4.4"
    assert many["submodel"] != "w1-d4.4.4"
    assert "the largest that ends before the deadline: " in many["reason"]


def test_memory_bounds_what_is_given_and_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    files = [
        measured(tmp_path, "little", memory=100 * 10**6),
        measured(tmp_path, "none", memory=10**6),
    ]
    little, nothing = assigned(files)["agents"]
    assert "the largest that fits memory: " in little["reason"]
    assert nothing["submodel"] is None
    assert nothing["reason"].startswith("cannot hold any submodel: w0.5-d2.2.2 would take ")


def test_the_network_is_for_the_data_that_are_named_else_for_those_it_was_measured_with(
    tmp_path: Path,
) -> None:
    own = measured(tmp_path, "own", data=DIGITS)
    made = assigned([own])
    assert made["network"]["inputs"] == (1, 8, 8)
    assert made["agents"][0]["examples"] == 320
    named = assigned([measured(tmp_path, "bare")], {"data.name": "digits"})
    assert named["network"]["inputs"] == (1, 8, 8)


def test_who_does_not_meet_the_constraint_is_told_why(tmp_path: Path) -> None:
    made = assigned(
        [measured(tmp_path, "a", labels=("eu",)), measured(tmp_path, "b", labels=("us",))],
        {"fleet.select": "label=eu"},
    )
    assert [one["submodel"] for one in made["agents"]] == ["w1-d4.4.4", None]
    assert made["agents"][1]["reason"] == "not selected: label=eu not met: it has us"
    assert (
        "b: 1 cpus, 1 GB, uplink not measured, so transfers count nothing, 1000 "
        "examples\n  gets nothing: not selected" in text(made)
    )


def test_a_family_that_was_not_timed_is_an_error_that_names_those_that_were(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"a: 'vit' was not timed there, only preresnet: run edge-agent profile --family vit",
    ):
        assigned([measured(tmp_path, "a")], {"model.name": "vit"})


def test_two_devices_of_one_name_are_refused(tmp_path: Path) -> None:
    file = measured(tmp_path, "a")
    with pytest.raises(ConfigError, match="two of the profiles are of a device called 'a'"):
        assigned([file, file])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["assign"], 2, "Missing option '--profile'"),
        (["assign", "--profile", "none.json"], 3, "none.json: cannot be read"),
        (["assign", "--profile", "a.json", "--method", "fedva"], 2, "unknown method 'fedva'"),
        (["assign", "--profile", "a.json", "--model", "vitt"], 3, "'vitt' was not timed there"),
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
def test_what_is_wrong_is_said_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    measured(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, words in done.output) == (code, True), done.output


def test_the_command_answers_in_json_and_marks_what_was_chosen(tmp_path: Path) -> None:
    file = str(measured(tmp_path, "a"))
    as_json = json.loads(
        CliRunner().invoke(main, ["assign", "--profile", file, "--format", "json"]).output
    )
    assert as_json["agents"][0]["submodel"] == "w1-d4.4.4"
    lines = CliRunner().invoke(main, ["assign", "--profile", file]).output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["w1-d4.4.4"]


def test_pins_are_kept_to(tmp_path: Path) -> None:
    made = assigned([measured(tmp_path, "a")], {"assign.submodels": {"a": "w0.5-d2.2.2"}})
    assert (made["agents"][0]["submodel"], made["agents"][0]["reason"]) == (
        "w0.5-d2.2.2",
        "pinned by assign.submodels",
    )


def test_a_sheet_of_another_format_is_refused(tmp_path: Path) -> None:
    path = measured(tmp_path, "a")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match="expected format 1, found 99"):
        assigned([path])
