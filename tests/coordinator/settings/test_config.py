"""Later sources of the configuration override earlier ones, and errors name the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from coordinator.settings.config import load, parse_setting, to_json
from federated.errors import ConfigError, Unknown

FILE = """
rounds = 5
[method]
name = "heterofl"
widths = [1.0, 0.5]
[train]
lr = 0.1
[fleet]
min_agents = 3
[assign]
submodels = {pi = "w0.5-d2"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_flags_override_the_environment_and_the_environment_overrides_the_file(file: Path) -> None:
    environment = {
        "ESPALIER_ROUNDS": "7",
        "ESPALIER_FLEET__MIN_AGENTS": "4",
        "ESPALIER_DATA": "somewhere",
        "HOME": "/",
    }
    config = load(file, environment, [parse_setting("train.lr=0.05"), ("fleet.fraction", 0.5)])
    assert (config.rounds, config.fleet.min_agents, config.fleet.fraction) == (7, 4, 0.5)
    assert (config.settings["lr"], config.settings["widths"]) == (0.05, (1.0, 0.5))
    assert (config.settings["rounds"], config.settings["batch"]) == (7, 10)
    assert config.method_name == "heterofl"
    assert config.assign.submodels == {"pi": "w0.5-d2"}
    assert config.data.name == "digits"


@pytest.mark.parametrize(
    ("first", "second"), [("train.lr", "method.lr"), ("method.lr", "train.lr")]
)
def test_the_last_value_of_a_setting_in_two_tables_counts(
    tmp_path: Path, first: str, second: str
) -> None:
    table, _, key = first.partition(".")
    path = tmp_path / "run.toml"
    path.write_text(f"[{table}]\n{key} = 0.5\n")
    assert load(path, {}, [(second, 0.1)]).settings["lr"] == 0.1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.name=sgd", "unknown heterofl setting 'name'.*did you mean model.name or"),
        ("method.seed=3", "unknown heterofl setting 'seed'.*did you mean seed, above the first"),
        ("train.momentun=0.5", "unknown heterofl setting 'momentun'; did you mean momentum"),
        ("train.mu=0.5", "unknown heterofl setting 'mu'.*; a setting of fednova, fedprox, "),
    ],
)
def test_load_rejects_an_unknown_setting_of_the_method(
    file: Path, setting: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(file, {}, [parse_setting(setting)])


def test_a_private_run_gives_every_update_the_same_weight() -> None:
    given = [("method.name", "fedavg"), ("private.noise", 1.0), ("private.clip", 1.0)]
    assert load(None, {}, given[:1]).settings["weighting"] == "samples"
    assert load(None, {}, given).settings["weighting"] == "uniform"
    with pytest.raises(ConfigError, match=r"weighting: .*'samples'.*private\.noise"):
        load(None, {}, [*given, ("method.weighting", "samples")])


def test_a_changed_seed_reaches_the_method() -> None:
    config = load(None, {}, [("seed", 3)])
    assert config.settings["seed"] == 3
    assert structs.replace(config, seed=4).settings["seed"] == 4


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("fleet.lr=1", "train.lr"),
        ("model.widths=[1]", "method.widths"),
        ("model.strategy=max", "method.strategy"),
        ("fleet.rounds=3", "rounds, above the first table"),
        ("data.seed=3", "seed, above the first table"),
        ("evaluate.partition=iid", "simulate.partition"),
    ],
)
def test_the_error_for_a_key_in_a_wrong_table_names_its_table(setting: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {place}\?$"):
        load(None, {}, [parse_setting(setting)])


def test_a_record_survives_json(file: Path) -> None:
    config = load(file, {}, [])
    assert load(None, {}, [], base=to_json(config)) == config


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("flet.min_agents=1", "unknown key 'flet'; did you mean fleet"),
        (
            "fleet.late=tak",
            r"fleet.late: expected one of drop, take, found 'tak'",
        ),
        ("fleet.min_agent=1", r"fleet: unknown key 'min_agent'; did you mean min_agents"),
        ("rounds=0", r"rounds: expected a whole number of at least 1, found 0"),
        (
            "fleet.fraction=1.5",
            r"fleet.fraction: expected a number above 0 and at most 1, found 1.5",
        ),
        ("fleet.deadline=-1", "deadline"),
        ("fleet.deadline=inf", "fleet.deadline: expected a finite number, found inf"),
        ("private.uncovered=['names']", r"private.uncovered\[0\]: expected one of moments, scores"),
        ("train.lr=0", "train.lr: expected a number above 0, found 0"),
        ("rounds.of=1", "rounds"),
        ("observe.readers=[csv]", r"--set observe.readers: expected a list .*in quotes"),
    ],
)
def test_a_wrong_key_or_value_is_named(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(None, {}, [parse_setting(setting)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", "invalid TOML"),
        ("round = 1", "unknown key 'round'; did you mean rounds"),
        ("rounds = 0", "wrong.toml: rounds: expected"),
        ("[train]\nlr = 0", "wrong.toml: train.lr: expected"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(path, {}, [])
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml", {}, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ESPALIER_ROUNDS", "ten"),
        ("ESPALIER_FLEET__DEADLINE", "-1"),
        ("ESPALIER_METHOD__WIDTHS", "[0.5, 2.0]"),
        ("ESPALIER_TRAIN__LR", "0"),
        ("ESPALIER_TRAIN__LRR", "0.1"),
        ("ESPALIER_FLEET__MIN_AGENT", "1"),
        ("ESPALIER_FLET__MIN_AGENTS", "1"),
        ("ESPALIER_ASSIGN__SUBMODELS", "{pi = 3}"),
    ],
)
def test_the_variable_of_a_wrong_value_is_named(file: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        load(file, {name: value}, [])


def test_an_error_does_not_name_a_source_that_another_overrides(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^rounds: "):
        load(file, {"ESPALIER_ROUNDS": "7"}, [("rounds", 0)])
    with pytest.raises(ConfigError, match=r"^train.lr: "):
        load(file, {"ESPALIER_METHOD__LR": "7"}, [("train.lr", 0)])
    with pytest.raises(Unknown, match=r"^ESPALIER_METHOD__NAME: .*did you mean fedavg"):
        load(file, {"ESPALIER_METHOD__NAME": "fedvag"}, [])


def test_the_file_of_an_unknown_method_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[train]\nlrr = 0.1")
    with pytest.raises(ConfigError, match=r"wrong.toml: .*'lrr'; did you mean lr"):
        load(path, {}, [])


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match=r"wrong.toml: .*UTF-8"):
        load(path, {}, [])


def test_a_setting_that_is_not_toml_is_text() -> None:
    assert parse_setting("a.b=[1, 2]") == ("a.b", [1, 2])
    assert parse_setting("data.name=mnist") == ("data.name", "mnist")
    assert parse_setting('assign.submodels={a="w1"}') == ("assign.submodels", {"a": "w1"})
