"""Sheets: a coordinator reads the file of a device, and an invalid file gives a short error."""

import json
from dataclasses import replace

import pytest

from federated.device.profile_file import (
    Calibration,
    Circumstances,
    Sheet,
    read,
    select_profile,
    write,
)
from federated.errors import ConfigError
from federated.task import Board, Card, Profile, Timing
from models.submodel import Network, Submodel

CARD = Card("random", (3, 32, 32), "uint8", 10, 32, 0, (127.5,), (73.9,))
PROFILE = Profile(
    "pi-1",
    "pi",
    "Linux aarch64",
    4.0,
    10**9,
    2e6,
    262_144,
    "torch 2.13 cpu",
    CARD,
    (),
    board=Board("pi", "Raspberry Pi 5"),
)


def timing(family="mobilenet", seconds=0.5, width=0.25, batch=32):
    return Timing(
        Submodel(Network(family, "v2", (3, 32, 32), 10), width, ((1, 1),)), batch, seconds
    )


def calibration(family="mobilenet", seconds=0.5, **given):
    return replace(Calibration(family, "torch", "train", 1, (timing(family, seconds),)), **given)


def sheet(*calibrations):
    return Sheet(
        PROFILE,
        calibrations,
        Circumstances(51.5, 2400.0, False, 0.02),
        {"torch": "2.13.0"},
        2.0,
        10**9,
        "2026-11-21T12:00:00Z",
    )


def changed(tmp_path, change):
    """Return the path of a sheet after a change of its JSON."""
    path = tmp_path / "s.json"
    write(sheet(calibration()), path)
    found = json.loads(path.read_text())
    another = change(found)
    path.write_text(json.dumps(another if isinstance(another, list) else found))
    return path


def test_a_written_sheet_is_read_back(tmp_path):
    write(sheet(calibration(), calibration("vit", work="infer")), tmp_path / "s.json")
    assert read(tmp_path / "s.json") == sheet(calibration(), calibration("vit", work="infer"))
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_a_profile_has_the_shortest_time_of_each_submodel_of_its_family():
    wide = Calibration("mobilenet", "torch", "train", 1, (timing(seconds=0.9, width=0.5),))
    found = sheet(
        calibration(),
        calibration(seconds=0.4, threads=2),
        wide,
        calibration(seconds=0.01, work="infer"),
        calibration("vit", 0.1),
    )
    assert set(select_profile(found, "mobilenet").timings) == {
        timing(seconds=0.4),
        timing(seconds=0.9, width=0.5),
    }
    assert select_profile(found, "mobilenet").board == PROFILE.board


def test_the_error_of_an_untimed_family_lists_the_timed_ones():
    with pytest.raises(
        ConfigError,
        match=r"'resnet'.* mobilenet.*run edge-agent profile --family resnet",
    ):
        select_profile(sheet(calibration(), calibration("vit", work="infer")), "resnet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update(format=2), "expected format 1, found 2"),
        (lambda s: s.pop("format"), "expected the JSON of edge-agent profile"),
        (lambda s: [s], "expected the JSON of edge-agent profile"),
        (lambda s: s["profile"].pop("cpus"), "field .cpus."),
        (lambda s: s["profile"].update(memory=-1), "profile.memory"),
        (lambda s: s["profile"].update(agent="a/b"), "profile.agent"),
        (lambda s: s["calibrations"][0].update(timings=[]), "expected timings"),
        (
            lambda s: s["calibrations"][0].update(family="vit"),
            "expected submodels .*found some of mobilenet",
        ),
        (
            lambda s: s["calibrations"][0]["timings"][0].update(seconds=0),
            "1e-12 and 1e.09 seconds, found 32 and 0",
        ),
        (
            lambda s: s["calibrations"][0]["timings"][0].update(seconds=1e300),
            "1e-12 and 1e.09 seconds, found 32 and 1e.300",
        ),
        (
            lambda s: s["calibrations"][0]["timings"][0]["submodel"].update(width=3),
            "submodel.width",
        ),
    ],
)
def test_an_invalid_sheet_is_rejected_with_the_reason(tmp_path, change, said):
    path = changed(tmp_path, change)
    with pytest.raises(ConfigError, match=said) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_missing_or_malformed_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.json")
    (tmp_path / "s.json").write_bytes(b"\x93NUMPY")
    with pytest.raises(ConfigError, match="JSON of edge-agent profile"):
        read(tmp_path / "s.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(sheet(), tmp_path / "nowhere" / "s.json")


def test_an_own_network_is_accepted_only_if_it_was_named(tmp_path):
    write(sheet(calibration("os:system")), tmp_path / "s.json")
    with pytest.raises(ConfigError, match="whose code would run here"):
        read(tmp_path / "s.json")
    assert read(tmp_path / "s.json", own="os:system").calibrations[0].family == "os:system"
