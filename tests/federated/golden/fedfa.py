"""FedFA."""

from __future__ import annotations

import torch

from federated.device.attacks.formulas import Changes, plant_backdoor
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.common.trimmed_norm import central_norm
from models.slicing import graft
from models.submodel import Submodel
from models.submodel_building import shapes
from tests.support.golden import by_owner, close, floats, golden, play_round, shapes_of


def check_fedfa_distribute(toy):
    g = golden("fedfa_distribute")
    out, into = g["client_width_out_in"]
    before = {f"sections.0.{b}.w": floats(block) for b, block in enumerate(g["global_section"])}

    def tensors(submodel):
        shape = (2, 2) if submodel.width == 1 else (out, into)
        return {f"sections.0.{b}.w": shape for b, keep in enumerate(submodel.mask[0]) if keep}

    whole = toy(tensors, (2,))
    client = Submodel(
        whole.network, 0.5, ((1,) * g["client_depth"] + (0,) * (2 - g["client_depth"]),)
    )
    chosen = find_method("fedfa")
    state = chosen.start(before, [whole, client], configure(chosen, {}))
    found = chosen.dispatch(state, chosen.place(state, client))
    assert list(found) == ["sections.0.0.w"]
    close(found["sections.0.0.w"], g["expected"][0])


def check_fedfa_graft(toy):
    g = golden("fedfa_graft")
    whole = toy(
        lambda s: {
            f"sections.{i}.{b}.w": (1,)
            for i, m in enumerate(s.mask)
            for b, keep in enumerate(m)
            if keep
        },
        tuple(g["max_depth"]),
    )
    before = {name: torch.zeros(shape) for name, shape in shapes(whole).items()}
    updates = []
    for client in g["clients_blocks"]:
        mask = tuple(
            (1,) * len(blocks) + (0,) * (n - len(blocks))
            for blocks, n in zip(client, g["max_depth"], strict=True)
        )
        tensors = {
            f"sections.{i}.{b}.w": floats([v])
            for i, blocks in enumerate(client)
            for b, v in enumerate(blocks)
        }
        updates.append((Submodel(whole.network, 1.0, mask), tensors, 5, {}))
    for name, key in (("fedfa", "expected_uniform_no_scaling"), ("fedavg", "NeFL_style_no_graft")):
        after = play_round(find_method(name), before, updates, weighting="uniform")
        for i, blocks in enumerate(g[key]):
            close(torch.cat([after[f"sections.{i}.{b}.w"] for b in range(len(blocks))]), blocks)
    graft_of_another_shape(toy, g["shape_mismatch"])


def graft_of_another_shape(toy, g):
    def tensors(submodel):
        blocks = [g["client_section_blocks"][0], g["global_block1"]]
        return {
            f"sections.0.{b}.{k}": tuple(v)
            for b, keep in enumerate(submodel.mask[0])
            if keep
            for k, v in blocks[b].items()
        }

    whole = toy(tensors, (2,))
    chosen = find_method("fedfa")
    state = chosen.start(
        {name: torch.zeros(shape) for name, shape in shapes(whole).items()},
        [whole],
        configure(chosen, {}),
    )
    plan = chosen.place(state, Submodel(whole.network, 1.0, ((1, 0),)))
    added = graft(plan, shapes_of(state.tensors)).rows[len(plan.rows) :]
    assert [(r.local, r.home) for r in added] == [("sections.0.0.conv2", "sections.0.1.conv2")]


def check_fedfa_scaling(toy):
    g = golden("fedfa_scaling")
    before, clients = {"w": floats(g["global"])}, [{"w": floats(c)} for c in g["clients"]]
    subs = by_owner(toy, before, clients)
    for scaling, key in (("l2", "literal_L2"), ("rms", "rms_variant")):
        for client, norm in zip(clients, g[key]["norms"], strict=True):
            close(central_norm(client["w"], scaling), norm)
        updates = [(s, c, n, {}) for s, c, n in zip(subs, clients, g["num_samples"], strict=True)]
        close(
            play_round(find_method("fedfa"), before, updates, scaling=scaling)["w"],
            g[key]["expected"],
        )
    partly, clients = (
        g["width_uncovered"],
        [{"w": floats(c)} for c in g["width_uncovered"]["clients"]],
    )
    subs = by_owner(toy, before, clients)
    close(
        play_round(
            find_method("fedfa"),
            before,
            [(s, c, 1, {}) for s, c in zip(subs, clients, strict=True)],
            scaling="l2",
        )["w"],
        partly["expected"],
    )
    zero, clients = g["zero_norm"], [{"w": floats(c)} for c in g["zero_norm"]["clients"]]
    before = {"w": floats([9, 9])}
    subs = by_owner(toy, before, clients)
    given = [(s, c, 1, {}) for s, c in zip(subs, clients, strict=True)]
    close(
        play_round(find_method("fedfa"), before, given, scaling="l2", scale_1d=True)["w"],
        zero["expected"],
    )
    close(central_norm(floats(g["percentile_modes_on"]), "l2"), g["norm_abs"])


def check_fedfa_backdoor(toy):
    g = golden("fedfa_backdoor")
    before = {"w": floats(g["global"])}
    changes = Changes(floats(g["clean_update"]).numpy(), floats(g["backdoor_update"]).numpy())
    malicious = before["w"] + torch.from_numpy(plant_backdoor(changes, g["lambda"]))
    close(malicious, g["expected_malicious_update"])
    clients = [{"w": malicious}, {"w": floats(g["aggregate_N2_with_honest_update"])}]
    given = [(s, c, 1, {}) for s, c in zip(by_owner(toy, before, clients), clients, strict=True)]
    close(
        play_round(find_method("fedavg"), before, given, weighting="uniform")["w"],
        g["expected_global_uniform"],
    )
