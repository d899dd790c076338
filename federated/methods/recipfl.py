"""RecipFL: a hypernetwork on the coordinator generates the weights of each submodel for each device
(Zhang et al., How Few Davids Improve One Goliath: Federated Learning in Resource-Skewed Edge
Computing Environments, WWW 2024).

Difference from FedAvg: the coordinator holds no weights but a graph hypernetwork phi
(`federated.methods.hypernetwork`, after GHN-2, arXiv 2110.13100). It generates the weights of each
submodel for each device from the submodel's graph and the device's classes, so submodels need
nothing in common. From the generated weights theta_m and the weights theta_m' after training,

    phi <- phi - eta_s sum_m (d theta_m / d phi)^T (theta_m - theta_m')

(poster, Federated Training), with the sum clipped to a norm of 50 and applied by Adam (the authors'
code). When an update arrives, its theta_m is generated again from the same seed. A device with the
largest submodel also trains the smallest, with its own as teacher, and returns both
(`federated.methods.common.recipfl_student_training`).

A device that joins reports the fraction of each class among its examples, unlike under FedAvg.
Scores and exports are for a device with equally many examples of every class; the scores after
training are those of a device's own network. Batch norm is static. Predicted times leave the small
network out.

Differences from the authors, who leave some of this open: they encode each device's own last
weights, here it is the mean of its size unless `encode = "agent"`, whose state grows with the
fleet. The hidden size is 32 instead of 128, and tensors beyond `cap` numbers are tiled, so that a
CPU generates a small ResNet in a third of a second. There is no dropout instead of 0.5. A bias
shares the node of its weight. Every classifier depends on the device's classes; theirs of a network
cut in depth does not. They sum updates on MNIST and CIFAR-100 and take the mean by examples on
CIFAR-10 (`weighting`).

Measured with three devices with skewed digits (Dirichlet 1), one with w0.2-d2 and two with w1-d2 of
`mlp`, 8 rounds, batch 32, lr 0.05, one seed: the networks generated for no particular device
classify 0.585 and 0.841 of held-out digits correctly at server_lr 0.001, the authors', and 0.925
and 0.969 at 0.005.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Total, mean
from federated.engine.server_optimizer import ServerOptimizer, adamw, step
from federated.engine.update_contributions import Part
from federated.method import MODES, Method, Setting, Settings, State, Tensors, vary
from federated.methods import fedavg as base
from federated.methods.common.other_networks import MODELS
from federated.methods.common.recipfl_student_training import HOOKS, PREFIX, passes, with_student
from federated.methods.hypernetwork import graph_hypernetwork as hyper
from federated.methods.hypernetwork.submodel_menu import inactive, propose
from federated.task import Profile, Recipe, Update
from models.random_state import isolate_random_state
from models.slicing import Plan, Row, corner
from models.submodel import Submodel
from models.submodel_building import shapes

__all__ = ["recipfl", "recipfl_with"]

PHI, THETA = "phi/", "theta/"

Generate = Callable[[Tensors, State, Submodel], dict[str, Tensor]]
"""Function from phi by name, a state and a submodel to its tensors by name, differentiable in phi
and equal at every call.
"""

SETTINGS: Mapping[str, Setting] = {
    "weighting": Setting(
        "sum",
        "combination of the hypernetwork's updates: sum, mean weighted by examples, or "
        "unweighted mean",
        ("sum", "samples", "uniform"),
    ),
    "shrink": Setting(
        "width",
        "how small submodels are made: narrower, with `widths`, or from the first section, "
        "with an exit of its own",
        ("width", "depth"),
    ),
    "models": MODELS,
    "transfer": Setting(True, "devices with the largest submodel train the smallest too"),
    "hidden": Setting(32, "hidden size of the hypernetwork, a multiple of 4"),
    "cap": Setting(
        65536, "maximum number of values generated per tensor; larger tensors repeat them"
    ),
    "encode": Setting(
        "size",
        "weights that the hypernetwork reads: the mean of the agents with the same submodel, "
        "the agent's last ones, or none",
        ("size", "agent", "none"),
    ),
    "dropout": Setting(0.0, "dropout of the encoded weights in training; the authors use 0.5"),
    "server": Setting("adam", "the coordinator's optimiser", ("adam", "sgd")),
    "server_lr": Setting(
        1e-3,
        "learning rate of the coordinator; runs of few rounds do better with 0.005",
        above=0,
    ),
    "server_clip": Setting(
        50.0, "maximum L2 norm of an update of the hypernetwork; 0: no limit", least=0
    ),
}
# the authors' values
RECIPE = {"widths": (0.2, 1.0), "epochs": 5, "batch": 128, "lr": 0.01, "momentum": 0.0}
STATIC = Setting("static", "statistics of batch norm stay on devices", ("static",))
BREAKS = {
    "alone": "an update moves the hypernetwork by one step",
    "fedavg": "no weights are averaged",
    "identity": "Adam's momentum continues, and the hypernetwork reads the returned weights",
}


def find_student(state: State, submodel: Submodel) -> Submodel | None:
    """Return the submodel that a device trains after this one, if any."""
    found = with_student(state.settings, state.menu, submodel)
    return replace(found[0], owner=submodel.owner) if len(found) > 1 else None


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the last submodel of the menu that the device can afford, for this agent. With
    `models`, it is not always the one with the most parameters.
    """
    chosen = max(affordable, key=state.menu.index)
    return chosen if profile is None else replace(chosen, owner=profile.agent)


def place(state: State, submodel: Submodel) -> Plan:
    """Return every tensor with a home of its submodel, which stores the returned weights, and those
    of the small submodel if it is sent too.
    """
    along = find_student(state, submodel)
    return Plan(
        submodel, (*list_rows(state, submodel), *(list_rows(state, along, PREFIX) if along else ()))
    )


def list_rows(state: State, submodel: Submodel, prefix: str = "") -> Iterator[Row]:
    """Yield the rows of a submodel."""
    for name, shape in shapes(submodel).items():
        where = corner(shape)
        yield Row(prefix + name, where, name_theta_home(state, submodel, name), where, shape)


def name_theta_home(state: State, submodel: Submodel, name: str) -> str:
    """Return the home of a tensor's last weights."""
    owner = submodel if state.settings["encode"] == "agent" else submodel.plain
    return f"{THETA}{name}@{owner.name}"


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe, with the small submodel if the device trains it."""
    made, along = base.recipe(state, submodel), find_student(state, submodel)
    if along is None:
        return made
    return replace(made, hook="recipfl", options={"small": msgspec.to_builtins(along.unowned)})


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return phi for all submodels of the menu. The network's own initial tensors are unused."""
    form = hyper.make_layout(submodels, settings["hidden"], settings["cap"])
    with isolate_random_state(settings["seed"]):
        phi = hyper.Hypernetwork(form).state_dict()
    tensors = {PHI + name: value for name, value in phi.items()}
    return State(0, tensors, settings, menu=tuple(submodels))


def generate_weights(phi: Tensors, state: State, submodel: Submodel) -> dict[str, Tensor]:
    """Return the tensors that the hypernetwork generates of a submodel for its owner, or for no
    particular device.
    """
    told = state.agents.get(submodel.owner, {}).get("histogram")
    present = {
        name: state.tensors[home]
        for name in shapes(submodel)
        if (home := name_theta_home(state, submodel, name)) in state.tensors
    }
    digest = hashlib.sha256(
        f"{state.settings['seed']}/{state.round}/{submodel.owner}".encode()
    ).digest()
    with isolate_random_state(int.from_bytes(digest[:8], "big") >> 1):
        dropout = state.settings["dropout"] if submodel.owner else 0.0
        return hyper.generate(
            phi, submodel, present, hyper.read_class_shares(told, submodel.network.outputs), dropout
        )


def generate_all(
    generate: Generate, state: State, plan: Plan
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return phi as leaves of a graph by home, and all tensors of a plan generated from them."""
    leaves = {
        home: value.detach().clone().requires_grad_()
        for home, value in state.tensors.items()
        if home.startswith(PHI)
    }
    phi = {home.removeprefix(PHI): value for home, value in leaves.items()}
    found, along = generate(phi, state, plan.submodel), find_student(state, plan.submodel)
    if along is not None:
        found |= {PREFIX + name: value for name, value in generate(phi, state, along).items()}
    return leaves, found


def gradient_parts(generate: Generate, state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield (d theta / d phi)^T (theta - theta'), and the returned weights to encode in the next
    round.
    """
    share = base.weight(state, update)
    got = {name: torch.as_tensor(value) for name, value in update.tensors.items()}
    leaves, found = generate_all(generate, state, plan)
    moved = [found[name].detach() - value for name, value in got.items()]
    gradient = torch.autograd.grad(
        [found[name] for name in got], list(leaves.values()), moved, materialize_grads=True
    )
    for home, value in zip(leaves, gradient, strict=True):
        yield Part(home, corner(value.shape), tuple(value.shape), value, share)
    if state.settings["encode"] != "none":
        yield from base.parts(state, plan, update)


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return the state after a step of the coordinator's optimiser; an empty round takes none."""
    known, settings = state.tensors, state.settings
    came = {
        home: mean(one, known.get(home))
        for home, one in total.sums.items()
        if home.startswith(THETA)
    }
    phi = {home: one for home, one in total.sums.items() if home.startswith(PHI)}
    gradient = {
        home: one.value
        if settings["weighting"] == "sum"
        else mean(one, torch.zeros_like(one.value))
        for home, one in phi.items()
    }
    clip, norms = settings["server_clip"], [value.norm() for value in gradient.values()]
    norm = float(torch.stack(norms).norm()) if norms else 0.0
    if clip and norm > clip:
        gradient = {home: value * (clip / norm) for home, value in gradient.items()}
    lr, new = settings["server_lr"], dict[str, Tensor]()
    sgd = ServerOptimizer("sgd", lr, beta1=0.0)
    optimizer = adamw(lr) if settings["server"] == "adam" else sgd
    for home, value in gradient.items():
        new[home], moments = step(optimizer, known, home, known[home], -value)
        new |= moments
    return replace(state, round=state.round + 1, tensors={**known, **came, **new})


def recipfl_with(generate: Generate) -> Method:
    """Return RecipFL with another hypernetwork."""
    fedavg = base.fedavg()
    return replace(
        fedavg,
        name="recipfl",
        summary="a hypernetwork generates each device's weights, so that networks of any "
        "architecture learn from each other",
        paper="Zhang et al., How Few Davids Improve One Goliath, WWW 2024; its hypernetwork: "
        "GHN-2, Knyazev et al. (arXiv 2110.13100)",
        settings=vary(fedavg.settings, **RECIPE, **SETTINGS, norm=STATIC, sharing=None),
        forbids=dict.fromkeys(
            MODES,
            "an update is a gradient at the state that generated the weights, and has no bound",
        ),
        menu=propose,
        start=start,
        assign=assign,
        place=place,
        dispatch=lambda state, plan: {
            name: value.detach() for name, value in generate_all(generate, state, plan)[1].items()
        },
        recipe=recipe,
        parts=partial(gradient_parts, generate),
        finish=finish,
        trains=with_student,
        hooks=HOOKS,
        inactive=inactive,
        passes=passes,
        breaks=BREAKS,
    )


def recipfl() -> Method:
    return recipfl_with(generate_weights)
