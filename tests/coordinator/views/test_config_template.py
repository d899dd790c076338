"""The template of `coordinator init` has all defaults and explains every setting."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from coordinator.settings.config import Config, load
from coordinator.views.config_schema import render_template
from federated.errors import Unknown
from federated.methods.catalogue import METHODS, find_method


@pytest.mark.parametrize("name", METHODS)
def test_a_written_configuration_has_the_defaults(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(render_template(name))
    found, plain = load(file, {}, []), load(None, {}, [("method.name", name)])
    assert found.settings == plain.settings
    assert structs.replace(found, method={}, train={}) == Config()


@pytest.mark.parametrize("name", ["fedfa", "recipfl"])
def test_the_template_has_every_setting_once_with_a_comment_before_it(name: str) -> None:
    lines = render_template(name).splitlines()
    written = [
        (before, line.removeprefix("# ").partition(" =")[0])
        for before, line in pairwise(lines)
        if " =" in line and not line.startswith("# A run of")
    ]
    tables = [getattr(Config(), key) for key in Config.__struct_fields__]
    values = [
        key
        for key in Config.__struct_fields__
        if isinstance(getattr(Config(), key), int | str | float)
    ]
    expected = [
        *values,
        "name",
        *find_method(name).settings,
        *(key for one in tables for key in getattr(one, "__struct_fields__", ())),
    ]
    assert sorted(key for _, key in written) == sorted(expected)
    assert [key for before, key in written if not before.startswith("# ")] == []
    assert max(map(len, lines)) <= 100


def test_the_settings_of_training_are_in_their_own_table() -> None:
    found = tomllib.loads(render_template("fedprox"))
    assert (found["method"]["mu"], found["method"]["name"]) == (0.01, "fedprox")
    assert found["train"]["lr"] == 0.05
    assert not found["train"].keys() & found["method"].keys()


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(Unknown, match="unknown method 'fedav'; did you mean fedavg"):
        render_template("fedav")
