"""FlexiFed."""

from __future__ import annotations

from dataclasses import replace

import torch

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.submodel import Submodel
from tests.support.golden import close, floats, golden

MASKS = {"A": (1, 0, 0, 0), "B": (1, 1, 0, 0), "C": (1, 1, 1, 0)}


def check_flexifed(toy):
    g = golden("flexifed")
    names = {MASKS[kind]: list(g["clients"][client]) for client, kind in g["architectures"].items()}
    every = {name: (1,) for client in g["clients"].values() for name in client}
    whole = toy(
        lambda s: dict.fromkeys(names[s.mask[0]], (1,)) if s.mask[0] in names else every, (4,)
    )
    submodels = {kind: Submodel(whole.network, 1.0, (mask,)) for kind, mask in MASKS.items()}
    held = {client: submodels[kind] for client, kind in g["architectures"].items()}
    for strategy in ("basic", "clustered", "max"):
        found = personal(g, strategy, {name: torch.zeros(1) for name in every}, held)
        for client, expected in g[f"expected_{strategy}_common"].items():
            assert found[client].keys() == expected.keys()
            for name, value in expected.items():
                close(found[client][name], [value])


def personal(g, strategy, before, held):
    """Return each device's tensors after one round: received ones, and its own."""
    chosen = find_method("flexifed")
    state = chosen.start(before, list(held.values()), configure(chosen, {"strategy": strategy}))
    state, total = (
        replace(state, fleet={s: list(held.values()).count(s) for s in held.values()}),
        Total(),
    )
    own = {}
    for client, submodel in held.items():
        trained = {name: floats([value]) for name, value in g["clients"][client].items()}
        keep = chosen.recipe(state, submodel).keep
        own[client] = {name: trained[name] for name in keep}
        sent = {name: value for name, value in trained.items() if name not in keep}
        update = Update("r", 1, 0, client, "train", submodel, "0", 1 + int(client), 1, sent)
        fold(total, chosen.parts(state, chosen.place(state, submodel), update), (client,))
        assert strategy != "basic" or list(sent) == g["basic_common_layers"]
    after = chosen.finish(state, total, None)
    return {
        client: own[client] | chosen.dispatch(after, chosen.place(after, submodel))
        for client, submodel in held.items()
    }
