"""AllSmall and ExclusiveFL."""

from __future__ import annotations

import torch

from federated.method import State, configure
from federated.methods.catalogue import find_method
from models.submodel import Submodel, scale_count
from tests.support.golden import close, golden, play_round


def check_allsmall_exclusivefl(toy):
    g = golden("allsmall_exclusivefl")
    whole = toy(lambda submodel: {"w": (scale_count(submodel.width, 2),)})
    before, widths = {"w": torch.zeros(2)}, {"weak": 0.5, "strong": 1.0}
    clients = [(kind, client) for kind, some in g["clients"].items() for client in some]

    def after(name):
        chosen = find_method(name)
        settings = configure(chosen, {"widths": list(widths.values())})
        menu = chosen.menu(whole.network, settings)
        state = State(0, before, settings, menu=menu)
        updates = []
        for kind, client in clients:
            able = [s for s in menu if s.width <= widths[kind]]
            submodel = chosen.assign(state, None, able, None)
            updates.append(
                (
                    submodel,
                    {"w": torch.full((scale_count(submodel.width, 2),), float(client["v"]))},
                    client["n"],
                    {},
                )
            )
        return play_round(chosen, before, updates)

    close(after("allsmall")["w"], [g["AllSmall"]["expected_small"], 0.0])
    found, expected = after("exclusivefl"), g["ExclusiveFL"]["per_architecture_fedavg"]
    for width, key in ((0.5, "small"), (1.0, "large")):
        value = found[f"w@{Submodel(whole.network, width, whole.mask).name}"]
        close(value, [expected[key]] * value.numel())
