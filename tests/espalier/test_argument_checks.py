"""Each error about an argument names the argument, what is expected and what was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import espalier
from federated.errors import ArgumentError, describe_value

OTHER = espalier.Network("mlp", "small", (4,), 3)

Call = Callable[[Any, Any], object]  # a call with a network and its smaller submodel


def wrong(words: str, call: Call) -> Any:
    return pytest.param(words, call, id=words)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        wrong(
            "inputs: expected whole numbers of at least 1, such as (3, 32, 32), found 4",
            lambda *_: espalier.network("mlp-small", inputs=4),  # type: ignore[arg-type]
        ),
        wrong("inputs: expected whole numbers", lambda *_: espalier.network("mlp", (0,), 2)),
        wrong(
            "outputs: expected a whole number of at least 0, found '3'",
            lambda *_: espalier.network("mlp-small", (4,), "3"),  # type: ignore[arg-type]
        ),
        wrong("network: expected a network of espalier.network", lambda *_: espalier.menu(5)),
        wrong("widths: expected numbers", lambda net, _: espalier.menu(net, 0.5)),
        wrong("widths: expected numbers above 0", lambda net, _: espalier.menu(net, ("a",))),
        wrong("widths: expected numbers above 0", lambda net, _: espalier.menu(net, ())),
        wrong("depths: expected whole", lambda net, _: espalier.menu(net, (1.0,), (0.5,))),
        wrong("depths: expected whole", lambda net, _: espalier.menu(net, (1.0,), (0,))),
        wrong("submodel: expected a submodel", lambda net, _: espalier.cost(net)),
        wrong("batch: expected a whole number", lambda _, small: espalier.cost(small, 0)),
        wrong("batch: expected a whole number", lambda _, small: espalier.cost(small, "x")),
        wrong("source: expected a network", lambda _, small: espalier.slice("x", small)),
        wrong("submodel: expected", lambda net, _: espalier.slice(net, 5)),
        wrong("weights: expected", lambda net, small: espalier.slice(net, small, 5)),
        wrong(
            "weights['a']: expected a tensor",
            lambda net, small: espalier.slice(net, small, {"a": [1.0]}),
        ),
        wrong("source: expected a network", lambda *_: espalier.merge(5, [])),
        wrong("updates: expected a list of pairs", lambda net, _: espalier.merge(net, 5)),
        wrong("updates: expected at least one", lambda net, _: espalier.merge(net, [])),
        wrong("updates[0]: expected a pair", lambda net, _: espalier.merge(net, [(1, 2, 3)])),
        wrong("updates[0][0]: expected", lambda net, _: espalier.merge(net, [([1], 1)])),
        wrong("env: expected Simulation", lambda *_: espalier.run("fedavg", env=3)),
        wrong("runs: expected a path", lambda *_: espalier.run("fedavg", runs=5)),
        wrong("resume: expected True", lambda *_: espalier.run("fedavg", resume="yes")),
        wrong("name: expected the name", lambda *_: espalier.run("fedavg", name=5)),
        wrong("run: expected a path", lambda *_: espalier.load_run(None)),
        wrong("model: expected an nn.Module", lambda *_: espalier.load_run("r", 5)),
        wrong("source: expected a run", lambda *_: espalier.predict(5, np.zeros((1, 4)))),
        wrong("x: expected an array", lambda *_: espalier.predict("a.onnx", "rows")),
        wrong("x: expected an array", lambda *_: espalier.predict("a.onnx", [[1], [2, 3]])),
        wrong("source: expected a network", lambda *_: espalier.export("mine", "out")),
        wrong(
            "submodel: expected a submodel of menu(network) for this network (Tiny, ",
            lambda net, small: espalier.slice(net, replace(small, network=OTHER)),
        ),
        wrong(
            "submodels: expected modules by submodel",
            lambda net, small: espalier.export(net, "out", [small]),
        ),
        wrong(
            "submodels: expected a submodel of menu(network) for this network (Tiny, ",
            lambda net, small: espalier.export(
                net, "out", {replace(small, network=OTHER): espalier.slice(net, small)}
            ),
        ),
    ],
)
def test_a_wrong_argument_is_named(
    words: str, call: Call, tiny: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net = espalier.network(tiny, inputs=(4,))
    small = espalier.menu(net, (0.5,))[0]
    with pytest.raises(ArgumentError, match=f"^{re.escape(words)}") as found:
        call(net, small)
    assert found.value.argument == re.split(r":", words)[0]
    assert not list(tmp_path.iterdir())


def test_updates_may_come_from_any_iterable(tiny: nn.Module) -> None:
    net = espalier.network(tiny, inputs=(4,))
    merged = espalier.merge(net, zip([tiny], [5], strict=True), tiny)  # type: ignore[arg-type]
    torch.testing.assert_close(merged["net.first.weight"], tiny.first.weight.detach())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("ten", "'ten'"),
        (None, "None"),
        ({}, "a dict"),
        (np.zeros(2), "an array of float64 [2]"),
        ((0.5, "a"), "(0.5, 'a')"),
        (nn.Linear, "the class Linear"),
        (OSError(), "an OSError"),
        ("a" * 200, f"'{'a' * 79}..."),
    ],
)
def test_a_found_value_is_described_in_few_words(value: object, text: str) -> None:
    assert describe_value(value) == text
