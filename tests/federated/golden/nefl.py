"""NeFL, on the real networks: four channels of the files are four quarters of a section's, two
blocks those of its first section.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.task import Card, Profile
from models.families.efficientnet import PRESETS, STYLE
from models.layers.inverted_residual_network import Block, Place
from models.named_network import network
from models.submodel_building import full, list_normalising, shapes
from tests.support.golden import close, floats, golden, play_round

WHOLE = full(network("resnet-small", (1, 8, 8), 10), ("steps",))


def constant(submodel, value, **other):
    """Return tensors of one value, except given norms and steps."""
    norms = list_normalising(submodel)
    kinds = {
        name: "norm" if name in norms else "step" if name.endswith(".step") else ""
        for name in shapes(submodel)
    }
    return {
        name: torch.full(shape, float(other.get(kinds[name], value)))
        for name, shape in shapes(submodel).items()
    }


def quarters(value, axes):
    """Return the means over the quarters of each of the leading axes, without the other axes. Check
    that each quarter has equal values.
    """
    size = [n // 4 for n in value.shape[:axes]]
    view = value.reshape(*(m for n in size for m in (4, n)), -1)
    found = view.mean(dim=(*range(1, 2 * axes, 2), 2 * axes))
    spread = view - found.reshape(*(m for n in found.shape for m in (n, 1)), 1)
    assert float(spread.abs().max()) < 1e-5
    return found


def case(g, part, scaling="nefl-wd"):
    """Return the tensors after the case's round, and its submodels."""
    ratios, masks = (
        part.get("ps_channel_ratio", part.get("ps", g["caseW"]["ps_channel_ratio"])),
        part.get("s2D", g["caseW"]["s2D"]),
    )
    subs = [
        replace(WHOLE, width=ratio, mask=(tuple(m), *WHOLE.mask[1:]))
        for ratio, m in zip(ratios, masks, strict=True)
    ]
    before = constant(WHOLE, g["global_value"], norm=g["bn_init"], step=g["step_init"])
    updates = [(subs[k], constant(subs[k], value), 1 + 5 * k, {}) for k, value in part["clients"]]
    return play_round(find_method(scaling), before, updates), subs


def check_nefl_nefedavg(toy):
    g = golden("nefl_nefedavg")
    conv = "sections.0.{}.conv1.weight".format
    w = g["caseW"]
    after, (narrow, wide) = case(g, w)
    for block in (0, 1):
        close(quarters(after[conv(block)], 2), w["expected_block_conv"])
    close(quarters(after["stem.weight"], 1), w["expected_stem"])
    close(quarters(after["linear.weight"].T, 1), w["expected_fc_weight"][0])
    close(after["linear.bias"], w["expected_fc_bias"][:1] * 10)
    for submodel, step, norm in zip(
        (narrow, wide),
        w["expected_step"],
        (w["expected_bn_sub0"], w["expected_bn_sub1"]),
        strict=True,
    ):
        close(after[f"sections.0.1.step@{submodel.name}"], [step])
        close(after[f"norm.weight@{submodel.name}"], norm[:1] * (len(norm) * 4))
    after, _ = case(g, g["caseWD"])
    for block in (0, 1):
        close(quarters(after[conv(block)], 2), g["caseWD"][f"expected_block{block}_conv"])
    d = g["caseD_uncovered"]
    after, (shallow, _) = case(g, d)
    assert bool((after[conv(1)] == d["recommended_block1"]).all())
    close(quarters(after[conv(0)], 2), [[d["expected_block0"]] * 4] * 4)
    close(after[f"norm.weight@{shallow.name}"], [d["expected_block0"]] * 16)
    after, _ = case(g, g["caseW_uncovered"])
    close(quarters(after[conv(0)], 2), g["caseW_uncovered"]["expected_block_conv"])
    after, _ = case(g, g["case_three"])
    for block in (0, 1):
        close(quarters(after[conv(block)], 2), g["case_three"][f"expected_block{block}_conv"])


def steps_at_first(mask):
    """Return the initial steps of one section of a ResNet under nefl-do, 0 for blocks that are left
    out.
    """
    model, section = {9: ("resnet-56", 0), 6: ("resnet-34-nefl", 2)}[len(mask)]
    whole = full(network(model, (3, 32, 32), 10), ("steps",))
    submodel = replace(
        whole, mask=tuple(tuple(mask) if s == section else m for s, m in enumerate(whole.mask))
    )
    chosen = find_method("nefl-do")
    before = {name: torch.ones(1).expand(shape) for name, shape in shapes(whole).items()}
    state = chosen.start(before, [whole, submodel], configure(chosen, {"norm": "static"}))
    found = chosen.dispatch(state, chosen.place(state, submodel))
    return [
        float(found.get(f"sections.{section}.{block}.step", torch.zeros(1)))
        for block in range(len(mask))
    ]


def check_nefl_do_steps(toy):
    for one in golden("nefl_do_steps")["cases"]:
        assert steps_at_first(one["mask"]) == one["expected"]


def check_nefl_step_forward(toy):
    """Check inverted residuals, which nothing follows after the addition, about a 1x1 convolution
    that halves.
    """
    g = golden("nefl_step_forward")
    section = replace(PRESETS["tiny"].sections[0], channels=2)
    x = floats(g["x"]).reshape(1, 2, 1, 1)
    seen = []
    for step in g["steps"]:
        block = Block(section, Place(2), 1.0, STYLE, steps=True).eval()
        block.residual = nn.Conv2d(2, 2, 1, bias=False)
        with torch.no_grad():
            block.residual.weight.copy_(0.5 * torch.eye(2).reshape(2, 2, 1, 1))
            block.step.fill_(step)
        seen.append((block, x))
        x = block(x)
    close(x, np.array(g["expected"]).reshape(1, 2, 1, 1))
    block, h = seen[-1]
    upstream = floats([1.0, 10.0]).reshape(1, 2, 1, 1)
    (gradient,) = torch.autograd.grad((block(h.detach()) * upstream).sum(), block.step)
    close(gradient, [float((0.5 * h.detach() * upstream).sum())])
    rule = g["NeFL_DO_init_rule"]
    assert steps_at_first(rule["mask"]) == rule["expected_steps"]


def check_nefl_tiers(toy):
    g = golden("nefl_tiers")
    chosen = find_method("nefl-w")
    settings = configure(chosen, {"tiers": "index", "flex": g["flex"]})
    menu = chosen.menu(WHOLE.network, settings)
    assert len(menu) == g["num_submodels"]
    agents = {f"a{i:02d}": {} for i in range(g["num_clients"])}
    state = State(0, {}, settings, agents=agents, menu=menu)
    card = Card("d", (1, 8, 8), "uint8", 10, 9, 0, (0.0,), (1.0,))
    rng = np.random.default_rng(0)
    for index, allowed in g["allowed"].items():
        profile = Profile(f"a{int(index):02d}", "h", "s", 1.0, 1, 1.0, 1, "torch", card, ())
        drawn = {chosen.assign(state, profile, menu, rng) for _ in range(60)}
        assert sorted(map(menu.index, drawn)) == allowed
