"""RecipFL: Zhang et al., How Few Davids Improve One Goliath: Federated Learning in Resource-Skewed
Edge Computing Environments (WWW 2024).

Against FedAvg, the coordinator holds no weights but a graph hypernetwork phi
(`federated.methods.hypernetwork`, after GHN-2, arXiv 2110.13100). It makes the weights of each
submodel for each device from the submodel's graph and the device's classes, so submodels need have
nothing in common. From the weights theta_m that it made and the weights theta_m' that came back
after training,

    phi <- phi - eta_s sum_m (d theta_m / d phi)^T (theta_m - theta_m')

(poster, Federated Training), the sum clipped to a norm of 50 and taken by Adam (the authors' code).
What was made for an update is made again from the same seed when it arrives. A device with the
largest submodel also trains the smallest, taught by its own, and returns both
(`federated.methods.common.student`).

A device that joins tells the share of each class among its examples, which FedAvg's do not. Scores
and exports are of a device with as many examples of every class; a device's own network has the
scores after training. Batch norm is static. Predicted times leave the small network out.

Where the authors differ, or leave it open: they encode each device's own last weights, here the
mean of its size's unless `encode = "agent"`, whose state grows with the fleet; the hidden size is
32 for 128, and tensors beyond `cap` numbers are tiled, so that a CPU makes a small ResNet in a
third of a second; there is no dropout for 0.5; a bias shares the node of its weight; every
classifier knows the device's classes, theirs of a network cut in depth does not; they sum updates
on MNIST and CIFAR-100 and take the mean by examples on CIFAR-10 (`weighting`).

Measured: three devices with skewed digits (Dirichlet 1), one with w0.2-d2 and two with w1-d2 of
`mlp`, 8 rounds, batch 32, lr 0.05, one seed: what is made for nobody in particular gets 0.585 and
0.841 of held-out digits right at server_lr 0.001, the authors', and 0.925 and 0.969 at 0.005.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import msgspec
import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part, Total, mean
from federated.engine.server_optimizer import ServerOptimizer, adamw, step
from federated.method import MODES, Method, Setting, Settings, State, Tensors, varied
from federated.methods import fedavg as base
from federated.methods.common.student import HOOKS, PREFIX, passes, with_student
from federated.methods.hypernetwork import network as hyper
from federated.methods.hypernetwork.sizes import inactive, propose
from federated.task import Profile, Recipe, Update
from models.families.catalogue import shapes
from models.slicing import Plan, Row, corner
from models.submodel import Submodel

__all__ = ["Generate", "recipfl", "recipfl_with"]

PHI, THETA = "phi/", "theta/"

Generate = Callable[[Tensors, State, Submodel], dict[str, Tensor]]
"""From phi by name, a state and a submodel to its tensors by name, differentiable in phi and the
same at every call.
"""

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "weighting": Setting(
            "sum",
            "updates of phi are added up, or averaged by examples or uniformly",
            ("sum", "samples", "uniform"),
        ),
        "shrink": Setting(
            "width",
            "small submodels are narrower, by `widths`, or the first section with an "
            "exit of its own",
            ("width", "depth"),
        ),
        "models": Setting(
            (),
            "networks of weaker devices by name, in place of the run's own made smaller",
            each=str,
        ),
        "transfer": Setting(True, "a device with the largest submodel trains the smallest too"),
        "hidden": Setting(32, "hidden size of the hypernetwork, a multiple of 4"),
        "cap": Setting(
            65536, "most numbers of a tensor that are made; a larger tensor repeats them"
        ),
        "encode": Setting(
            "size",
            "whose last weights the hypernetwork reads: of all of a size, an agent's own, nobody's",
            ("size", "agent", "none"),
        ),
        "dropout": Setting(
            0.0, "of the encoding of weights that are to be trained; the authors' is 0.5"
        ),
        "server": Setting("adam", "the coordinator's optimiser", ("adam", "sgd")),
        "server_lr": Setting(
            1e-3, "its learning rate; runs of few rounds do better with 0.005", above=0
        ),
        "server_clip": Setting(50.0, "largest L2 norm of an update of phi; 0: any", least=0),
    }
)
# the authors'
RECIPE = {"widths": (0.2, 1.0), "epochs": 5, "batch": 128, "lr": 0.01, "momentum": 0.0}
STATIC = Setting("static", "statistics of batch norm stay on devices", ("static",))
BREAKS = {
    "alone": "an update moves the hypernetwork one step towards it",
    "fedavg": "no weights are averaged",
    "identity": "Adam's momentum goes on, and the hypernetwork reads what came back",
}


def small(state: State, submodel: Submodel) -> Submodel | None:
    """The submodel that a device trains after this one, if it does."""
    found = with_student(state.settings, state.settings.get("sizes", ()), submodel)
    return replace(found[0], owner=submodel.owner) if len(found) > 1 else None


def own_assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """The last of the menu that the device can afford, made for the agent: with `models`, which is
    not always the one with most parameters.
    """
    chosen = max(affordable, key=state.settings["sizes"].index)
    return chosen if profile is None else replace(chosen, owner=profile.agent)


def own_place(state: State, submodel: Submodel) -> Plan:
    """Every tensor as a home of its submodel's, where what came back is kept, of the small submodel
    too where it goes along.
    """
    along = small(state, submodel)
    return Plan(submodel, (*rows(state, submodel), *(rows(state, along, PREFIX) if along else ())))


def rows(state: State, submodel: Submodel, prefix: str = "") -> Iterator[Row]:
    for name, shape in shapes(submodel).items():
        yield Row(prefix + name, corner(shape), theta(state, submodel, name), corner(shape), shape)


def theta(state: State, submodel: Submodel, name: str) -> str:
    owner = submodel if state.settings["encode"] == "agent" else submodel.plain
    return f"{THETA}{name}@{owner.name}"


def own_recipe(state: State, submodel: Submodel) -> Recipe:
    made, along = base.recipe(state, submodel), small(state, submodel)
    return (
        replace(made, hook="recipfl", options={"small": msgspec.to_builtins(along.unowned)})
        if along
        else made
    )


def own_start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """phi for all submodels of the menu, which the settings get as `sizes`; the network's own
    initial tensors are of no use.
    """
    form = hyper.layout(submodels, settings["hidden"], settings["cap"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings["seed"])
        phi = hyper.Hypernetwork(form).state_dict()
    return State(
        0,
        {PHI + name: value for name, value in phi.items()},
        {**settings, "sizes": tuple(submodels)},
    )


def made_by_graph(phi: Tensors, state: State, submodel: Submodel) -> dict[str, Tensor]:
    """What the hypernetwork makes of a submodel for its owner; for nobody in particular where it
    has none.
    """
    told = state.agents.get(submodel.owner, {}).get("histogram")
    present = {
        name: state.tensors[home]
        for name in shapes(submodel)
        if (home := theta(state, submodel, name)) in state.tensors
    }
    with torch.random.fork_rng(devices=[]):
        digest = hashlib.sha256(
            f"{state.settings['seed']}/{state.round}/{submodel.owner}".encode()
        ).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        dropout = state.settings["dropout"] if submodel.owner else 0.0
        return hyper.generate(
            phi, submodel, present, hyper.shares(told, submodel.network.outputs), dropout
        )


def made(
    generate: Generate, state: State, plan: Plan
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """phi as leaves of a graph, by home, and all that a plan names, made of them."""
    leaves = {
        home: value.detach().clone().requires_grad_()
        for home, value in state.tensors.items()
        if home.startswith(PHI)
    }
    phi = {home.removeprefix(PHI): value for home, value in leaves.items()}
    found, along = generate(phi, state, plan.submodel), small(state, plan.submodel)
    if along is not None:
        found |= {PREFIX + name: value for name, value in generate(phi, state, along).items()}
    return leaves, found


def changes(generate: Generate, state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """(d theta / d phi)^T (theta - theta'), and what came back, to be encoded in the next round."""
    share, got = (
        base.weight(state, update),
        {name: torch.as_tensor(value) for name, value in update.tensors.items()},
    )
    leaves, found = made(generate, state, plan)
    moved = [found[name].detach() - value for name, value in got.items()]
    gradient = torch.autograd.grad(
        [found[name] for name in got], list(leaves.values()), moved, materialize_grads=True
    )
    for home, value in zip(leaves, gradient, strict=True):
        yield Part(home, corner(value.shape), tuple(value.shape), value, share)
    if state.settings["encode"] != "none":
        yield from base.parts(state, plan, update)


def own_finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """A step of the coordinator's optimiser; an empty round takes none."""
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
    norm = (
        float(torch.stack([value.norm() for value in gradient.values()]).norm())
        if gradient
        else 0.0
    )
    if settings["server_clip"] and norm > settings["server_clip"]:
        gradient = {
            home: value * (settings["server_clip"] / norm) for home, value in gradient.items()
        }
    lr, new = settings["server_lr"], dict[str, Tensor]()
    sgd = ServerOptimizer("sgd", lr, beta1=0.0)
    optimizer = adamw(lr) if settings["server"] == "adam" else sgd
    for home, value in gradient.items():
        new[home], moments = step(optimizer, known, home, known[home], -value)
        new |= moments
    return replace(state, round=state.round + 1, tensors={**known, **came, **new})


def recipfl_with(generate: Generate) -> Method:
    """RecipFL with another hypernetwork."""
    fedavg = base.fedavg()
    return replace(
        fedavg,
        name="recipfl",
        summary="a hypernetwork makes each device's weights, so that networks of any form learn "
        "from each other",
        paper="Zhang et al., How Few Davids Improve One Goliath, WWW 2024; its hypernetwork: "
        "GHN-2, Knyazev et al. (arXiv 2110.13100)",
        settings=varied(fedavg.settings, **RECIPE, **SETTINGS, norm=STATIC, sharing=None),
        forbids=dict.fromkeys(
            MODES,
            "an update is a gradient at what made the weights: of no other state, and "
            "without a bound of its own",
        ),
        menu=propose,
        start=own_start,
        assign=own_assign,
        place=own_place,
        dispatch=lambda state, plan: {
            name: value.detach() for name, value in made(generate, state, plan)[1].items()
        },
        recipe=own_recipe,
        parts=partial(changes, generate),
        finish=own_finish,
        trains=with_student,
        hooks=HOOKS,
        inactive=inactive,
        passes=passes,
        breaks=BREAKS,
    )


def recipfl() -> Method:
    return recipfl_with(made_by_graph)
