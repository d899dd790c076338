"""FedAvg and the coverage mean, kept widths, and calibrated batch norm."""

from __future__ import annotations

import torch
from torch import nn

from federated.engine.aggregate import Total, fold, mean
from federated.engine.update_contributions import Part
from federated.methods.catalogue import find_method
from models.layers.batch_norm import calibrate
from models.slicing import corner
from models.submodel import scale_count
from tests.support.golden import by_owner, close, floats, golden, play_round


def check_fedavg(toy):
    g = golden("fedavg")
    clients = [{name: floats(c[name]) for name in ("w", "b")} for c in g["clients"]]
    before = {name: torch.zeros_like(value) for name, value in clients[0].items()}
    subs = by_owner(toy, before, clients)
    for weighting, key in (("samples", "expected_weighted"), ("uniform", "expected_uniform")):
        after = play_round(
            find_method("fedavg"),
            before,
            [(s, c, n, {}) for s, c, n in zip(subs, clients, g["num_samples"], strict=True)],
            weighting=weighting,
        )
        for name in ("w", "b"):
            close(after[name], g[key][name])
    counters, total = [c["bn.num_batches_tracked"] for c in g["clients"]], Total()
    for index, (count, n) in enumerate(zip(counters, g["num_samples"], strict=True)):
        fold(total, [Part("n", (), (), torch.tensor(count), float(n))], (index,))
    assert (
        mean(total.sums["n"], torch.tensor(0)).item()
        == g["expected_weighted"]["bn.num_batches_tracked"]
    )


def check_unified_coverage(toy):
    g = golden("unified_coverage")
    before = {name: floats(value) for name, value in g["global"].items()}
    updates = [{name: floats(value) for name, value in u.items()} for u in g["updates"]]
    subs = by_owner(toy, before, updates)
    for weighting in ("samples", "uniform"):
        given = [(s, u, n, {}) for s, u, n in zip(subs, updates, g["weights_samples"], strict=True)]
        after = play_round(find_method("fedavg"), before, given, weighting=weighting)
        for name, expected in g[f"expected_{weighting}"].items():
            close(after[name], expected)
        assert torch.equal(after["b2"], before["b2"])


def check_ordered_width(toy):
    g = golden("ordered_width")
    assert [scale_count(ratio, width) for width, ratio, _ in g["cases"]] == g["check"]


def check_static_bn(toy):
    """Check one pass, and two agents with a batch each, folded by batches."""
    g = golden("static_bn")
    batches = [floats(b)[:, None] for b in g["batches"]]
    expected = {
        "0.running_mean": g["expected_running_mean"],
        "0.running_var": g["expected_running_var"],
    }
    stats, _ = calibrate(nn.Sequential(nn.BatchNorm1d(1)), batches)
    total = Total()
    for index, batch in enumerate(batches):
        own, count = calibrate(nn.Sequential(nn.BatchNorm1d(1)), [batch])
        fold(
            total,
            [
                Part(name, corner(value.shape), tuple(value.shape), value, count)
                for name, value in own.items()
            ],
            (index,),
        )
    for name, value in expected.items():
        close(stats[name], [value])
        close(mean(total.sums[name]), [value])
