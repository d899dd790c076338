"""ZiCo, and FedFA's count of multiply-adds."""

from __future__ import annotations

from federated.engine.training_multiply_adds import effort
from federated.training.zico_score import zico
from tests.support.golden import close, floats, golden


def check_zico(toy):
    g = golden("zico")
    close(zico({name: floats(values) for name, values in g["grads"].items()}), g["expected_score"])


def check_fedfa_mac(toy):
    g = golden("fedfa_mac")
    share = g["num_participating"] / sum(g["N"].values())
    # of each architecture its share
    trained = [
        g["MACS"][name] for name, count in g["N"].items() for _ in range(round(share * count))
    ]
    found = effort(
        [trained] * (g["rounds_to_target"] + 7), g["local_epochs"], g["rounds_to_target"]
    )
    assert (found.mean, found.mace, found.tmac) == (g["mean"], g["MACE"], g["TMAC"])
