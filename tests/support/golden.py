"""Shared parts of the checks of golden files: the files, toy networks of any tensors, and one round
of a method over given updates.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.task import Update
from models.families.catalogue import FAMILIES
from models.family import Family, TypicalData, last_linear, parse_address
from models.submodel import Network, Submodel
from models.submodel_building import full

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
COUNTER = itertools.count()


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def floats(values):
    return torch.tensor(values, dtype=torch.float32)


def close(found, expected):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        torch.as_tensor(found).double().reshape(expected.shape), expected, rtol=1e-5, atol=1e-5
    )


def holder(tensors):
    """Return a module with parameters of these shapes under these dotted names."""
    root = nn.Module()
    for name, shape in tensors.items():
        module = root
        *path, last = name.split(".")
        for step in path:
            if step not in dict(module.named_children()):
                module.add_module(step, nn.Module())
            module = dict(module.named_children())[step]
        module.register_parameter(last, nn.Parameter(torch.zeros(shape)))
    return root


def register_toy(monkeypatch):
    """Yield the fixture `toy`, which registers a family of any tensors."""

    def make(function, depths=()):
        """Return the whole as a submodel. function: (submodel) -> shapes of its tensors; depths:
        blocks per section.
        """
        preset = f"p{next(COUNTER)}"  # shapes are cached by submodel, so every toy is another one
        family = Family(
            build=lambda submodel: holder(function(submodel)),
            presets={preset: SimpleNamespace(depths=depths)},
            default=preset,
            inputs=0,
            typical=TypicalData((1,), 3, "class"),
            labelled=last_linear,
            features=frozenset({"scaler"}),
            help="of any tensors",
            draws=False,
            address=parse_address,
        )
        monkeypatch.setitem(FAMILIES, "toy", family)
        return full(Network("toy", preset, (1,), 3))

    return make


def make_owned(whole, owner):
    """Return the toy's submodel for one owner, whose tensors the toy's function looks up."""
    return Submodel(whole.network, 1.0, whole.mask, owner=owner)


def shapes_of(tensors):
    return {name: tuple(value.shape) for name, value in tensors.items()}


def play_round(chosen, before, updates, **given):
    """Return the tensors after one round: `before` are the whole's, an update is (submodel,
    tensors, samples, notes).
    """
    submodels = [u[0] for u in updates]
    state = chosen.start(before, submodels, configure(chosen, {"norm": "static", **given}))
    total = Total()
    for index, (submodel, tensors, samples, notes) in enumerate(updates):
        update = Update("r", 0, 0, str(index), "train", submodel, "0", samples, 1, tensors, notes)
        assert fold(
            total, chosen.parts(state, chosen.place(state, submodel), update), (update.agent,)
        )
    return chosen.finish(state, total, np.random.default_rng(0)).tensors


def by_owner(toy, before, locals_):
    """Return a toy whose owner "i" has the tensors of locals_[i]."""
    table = {"": shapes_of(before), **{str(i): shapes_of(t) for i, t in enumerate(locals_)}}
    whole = toy(lambda submodel: table[submodel.owner])
    return [make_owned(whole, str(i)) for i in range(len(locals_))]
