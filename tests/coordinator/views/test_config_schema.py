"""The JSON Schema of a configuration accepts and rejects the same files as `load`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from coordinator.settings.config import load
from coordinator.views.config_schema import build_schema
from federated.errors import EspalierError
from federated.methods.catalogue import METHODS, find_method

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "benchmarks" / "examples").glob("*.toml"))
CHECKER = jsonschema.Draft202012Validator(json.loads(json.dumps(build_schema())))


def list_rejected(tree: dict[str, Any]) -> list[str]:
    """Return the places of a configuration that the schema rejects."""
    return sorted({one.json_path for one in CHECKER.iter_errors(tree)})


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(CHECKER.schema)
    assert EXAMPLES


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_valid(file: Path) -> None:
    assert list_rejected(tomllib.loads(file.read_text())) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rouns = 5", "$"),
        ("rounds = 0", "$.rounds"),
        ("[fleet]\nmin_agent = 2", "$.fleet"),
        ("[fleet]\nfraction = 1.5", "$.fleet.fraction"),
        ('[method]\nname = "fedav"', "$.method.name"),
        ("[method]\nseed = 3", "$.method"),
        ("[method]\nmu = 0.1", "$.method"),
        ('[method]\nname = "fedprox"\nmu = -1', "$.method.mu"),
        ('[method]\nname = "fedprox"\nscaling = "l2"', "$.method"),
        ('[method]\nname = "depthfl"\nramp = 1.5', "$.method.ramp"),
        ('[train]\nname = "sgd"', "$.train.name"),
        ('[train]\nlr = "fast"', "$.train.lr"),
    ],
)
def test_the_schema_rejects_what_load_rejects(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(EspalierError):
        load(file, {}, [])
    assert list_rejected(tomllib.loads(text))[-1] == place


@pytest.mark.parametrize("name", METHODS)
def test_either_table_takes_the_settings_of_a_method(name: str) -> None:
    defaults = {
        key: list(known.default) if isinstance(known.default, tuple) else known.default
        for key, known in find_method(name).settings.items()
    }
    plain = json.loads(json.dumps(defaults))
    assert list_rejected({"method": {"name": name, **plain}}) == []
    assert list_rejected({"method": {"name": name}, "train": plain}) == []
    assert list_rejected({"method": {"name": name, "pace": 1}}) == ["$.method"]


def test_every_field_has_a_description_that_ends_with_a_period() -> None:
    told = {
        f"{table}.{key}": one.get("description", "")
        for table, part in {"": CHECKER.schema, **CHECKER.schema["$defs"]}.items()
        for key, one in part["properties"].items()
        if one.keys() not in ({"$ref"}, {"const"})
    }
    assert len(told) > 500
    assert [place for place, text in told.items() if not text.endswith(".")] == []
