"""InCo Aggregation, and the mean of deltas that it starts from."""

from __future__ import annotations

import torch

from federated.methods.catalogue import find_method
from tests.support.golden import by_owner, close, floats, golden, play_round

KEYS = {
    "code": "author_code",
    "paper": "paper_always_projected",
    "paper_cond": "paper_theorem_conditional(beta>=0 -> theta=0)",
    "unnormalised": "paper_theta_from_unnormalised",
}


def measure_steps(toy, shallow, deep, g0, gk, variant):
    """Return the steps of two layers after a round of one device that moved them by g0 and gk."""
    shape = tuple(g0.shape)
    whole = toy(lambda submodel: {shallow: shape, deep: shape}, (2,))
    before = {shallow: torch.ones(shape), deep: -torch.ones(shape)}
    sent = {shallow: before[shallow] + g0, deep: before[deep] + gk}
    after = play_round(find_method("inco-avg"), before, [(whole, sent, 5, {})], variant=variant)
    return after[shallow] - before[shallow], after[deep] - before[deep]


def check_inco(toy):
    """Check the one kernel of a convolution under a network's names, and a norm's weight under a
    transformer's.
    """
    g = golden("inco")
    g0 = floats(g["g0"])
    for variant, key in KEYS.items():
        for sign in ("beta_pos", "beta_neg"):
            names = "sections.0.0.conv2.weight", "sections.0.1.conv1.weight"
            first, second = measure_steps(
                toy,
                *names,
                g0.reshape(1, 1, 1, 2),
                floats(g[f"gk_{sign}"]).reshape(1, 1, 1, 2),
                variant,
            )
            close(first.flatten(), g["g0"])
            close(second.flatten(), g[key][sign])
    names = "sections.0.0.norm1.weight", "sections.0.0.norm2.weight"
    close(
        measure_steps(toy, *names, g0, floats(g["gk_beta_pos"]), "code")[1],
        g["author_code_vit_norm2"],
    )


def check_inco_heteroavg(toy):
    g = golden("inco_heteroavg")
    before = {name: floats([value]) for name, value in g["global"].items()}
    sent = [
        {name: before[name] + value for name, value in deltas.items()}
        for deltas in g["deltas"].values()
    ]
    submodels = by_owner(toy, before, sent)
    for name in ("fedavg", "inco-avg"):
        after = play_round(
            find_method(name),
            before,
            [(s, t, 1 + 8 * i, {}) for i, (s, t) in enumerate(zip(submodels, sent, strict=True))],
            weighting="uniform",
        )
        for home, expected in g["expected_global"].items():
            close(after[home], [expected])
    whole, before = (
        toy(lambda submodel: {"norm.running_var": (1,)}),
        {"norm.running_var": floats([1.0])},
    )
    after = play_round(
        find_method("inco-avg"), before, [(whole, {"norm.running_var": floats([-2.0])}, 1, {})]
    )
    close(after["norm.running_var"], [g["running_var_clamped_at_zero"]])
