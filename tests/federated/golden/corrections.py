"""FedProx, SCAFFOLD, FedNova, MOON, and the schedules of learning rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.fedavg import learning_rate
from federated.methods.fednova import normaliser
from federated.methods.moon import contrast
from federated.task import Update
from federated.training.hooks import Hooks
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from models.submodel_building import build
from tests.support.golden import close, floats, golden

# one example of the toy: its loss looks at the weights alone
X, Y = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)


def check_fedprox(toy):
    """Check two steps: the first goes to the start of the file, where nothing pulls yet; the second
    is the file's.
    """
    g = golden("fedprox")
    lr, chosen, there = g["lr"], find_method("fedprox"), floats(g["w_global"])
    whole = toy(lambda submodel: {"w": (2,)})
    settings = configure(
        chosen, {"mu": g["mu"], "lr": lr, "momentum": 0.0, "epochs": 2, "norm": "static"}
    )
    state = chosen.start({"w": there}, [whole], settings)
    session = open_session(
        build(whole), whole, chosen.recipe(state, whole), TrainingSet(X, Y), seed=0
    )
    session.net.w.data.copy_(there)
    gradients, seen = [(there - floats(g["w"])) / lr, floats(g["task_grad"])], []
    hooks = Hooks(
        "golden",
        loss=lambda s, x, truth: s.net.w @ gradients[s.step],
        step=lambda s: seen.append(s.net.w.grad.clone()),
    )
    train_session(session, hooks)
    assert session.step == 2
    close(seen[1], g["expected_total_grad"])
    close(session.net.w, g["expected_w_after_step"])


def check_scaffold(toy):
    """Check that each device descends on its own parabola in the real loop, with rounds of the real
    engine.
    """
    g = golden("scaffold")
    chosen = find_method("scaffold")
    whole = toy(lambda submodel: {"w": (1,)})
    given = {
        "lr": g["lr"],
        "epochs": g["local_steps"],
        "server_lr": g["server_lr"],
        "weighting": "uniform",
        "norm": "static",
    }
    state = chosen.start({"w": floats([g["w0"]])}, [whole], configure(chosen, given))
    close(state.tensors["c/w"], [g["c0"]])
    state, memories = replace(state, fleet={whole: g["num_clients"]}), [{}, {}]
    for expected in g["expected_rounds"]:
        total, plan = Total(), chosen.place(state, whole)
        for index, (h, m) in enumerate(zip(g["h"], g["m"], strict=True)):
            session = open_session(
                build(whole), whole, chosen.recipe(state, whole), TrainingSet(X, Y), seed=0
            )
            session.received, session.memory = chosen.dispatch(state, plan), memories[index]
            session.net.w.data.copy_(session.received["w"])
            train_session(
                session,
                Hooks(
                    "golden",
                    loss=lambda s, x, truth, h=h, m=m: 0.5 * h * (s.net.w - m).square().sum(),
                ),
            )
            close(session.net.w, [expected["local"][index]])
            memories[index] = session.memory
            close(memories[index]["c/w"], [expected["c_i"][index]])
            sent = {"w": session.net.w.detach(), **session.sent}
            update = Update(
                "r",
                state.round,
                0,
                str(index),
                "train",
                whole,
                "0",
                1 + 4 * index,
                session.step,
                sent,
                {},
            )
            fold(total, chosen.parts(state, plan, update), (index,))
        state = chosen.finish(state, total, np.random.default_rng(0))
        close(state.tensors["w"], [expected["global_"]])
        close(state.tensors["c/w"], [expected["c"]])


def check_fednova(toy):
    g = golden("fednova")
    chosen = find_method("fednova")
    whole = toy(lambda submodel: {"w": (2,)})
    for rho, key in ((0.0, "rho0"), (0.5, "rho0.5")):
        close([normaliser(tau, rho) for tau in g["tau"]], g[key]["a"])
        state = chosen.start(
            {"w": floats(g["w_global"])},
            [whole],
            configure(chosen, {"momentum": rho, "norm": "static"}),
        )
        total, plan = Total(), chosen.place(state, whole)
        for index, (local, tau, n, d) in enumerate(
            zip(g["w_local"], g["tau"], g["num_samples"], g[key]["d"], strict=True)
        ):
            update = Update(
                "r", 0, 0, str(index), "train", whole, "0", n, tau, {"w": floats(local)}, {}
            )
            parts = list(chosen.parts(state, plan, update))
            close(-parts[0].value, d)
            fold(total, parts, (index,))
        close(
            chosen.finish(state, total, np.random.default_rng(0)).tensors["w"], g[key]["expected_w"]
        )


def check_moon(toy):
    g = golden("moon")
    z, ours, before = (floats(g[key]) for key in ("z", "z_global", "z_prev"))
    loss = contrast(z, ours, before, g["temperature"])
    close(loss, g["expected_con_loss"])
    close(g["mu"] * loss, g["expected_weighted"])
    close(contrast(z, ours, None, g["temperature"]), g["no_prev_model_loss"])


def check_lr_schedules(toy):
    """Check milestones as rounds (NeFL's authors) and as fractions of all rounds, HeteroFL's in
    their round, and DepthFL's decay.
    """
    g = golden("lr_schedules")
    nefl = {"lr": g["nefl"]["lr0"], "rounds": g["nefl"]["T"]}
    for milestones in ((250, 375), (0.5, 0.75)):
        settings = configure(
            find_method("fedavg"),
            {"lr": nefl["lr"], "milestones": milestones},
            rounds=nefl["rounds"],
        )
        for number, expected in g["nefl"]["values"].items():
            close(learning_rate(settings, int(number)), expected)
    depthfl = configure(
        find_method("fedavg"), {"lr": g["depthfl"]["lr0"], "lr_decay": g["depthfl"]["decay"]}
    )
    close([learning_rate(depthfl, number) for number in (1, 2, 3)], [0.1, 0.0998, 0.0996004])
    for key, lr in (
        ("heterofl_cifar_iid", g["heterofl_cifar_iid"]["lr0"]),
        ("heterofl_cifar_noniid", 0.1),
    ):
        first, second = g[key]["milestones"]
        settings = configure(
            find_method("heterofl"),
            {"lr": lr, "milestones": g[key]["milestones"]},
            rounds=g[key]["T"],
        )
        close(
            [
                learning_rate(settings, number)
                for number in (1, first - 1, first, second - 1, second)
            ],
            [0.1, 0.1, 0.01, 0.01, 0.001],
        )
