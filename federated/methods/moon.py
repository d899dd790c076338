"""MOON: add a contrastive loss that moves a device's representations towards the received network's
and away from its own last one's (Li, He and Song, Model-Contrastive Federated Learning, arXiv
2103.16257, equation 3 and Algorithm 1).

Difference from FedAvg: the network has a projection head before its last linear layer (feature
"projection") with output z, and a device adds to its loss mu times

    l_con = -log( e^{sim(z, z_glob)/T} / (e^{sim(z, z_glob)/T} + e^{sim(z, z_prev)/T}) )

(sim is the cosine; mean over the batch). This moves z towards that of the received weights, and
away from that of the device's own weights of the round before, which it keeps. Both reference
networks are frozen and in evaluation mode. Norms without running statistics cannot evaluate, so
under `norm = "static"` they normalise by the batch, as in training. With several sizes, z_glob
comes from the device's own submodel.

l_con is 0 in a device's first round and in its first with another submodel, since there is no
previous network. It is also 0 for a batch of one example, which the authors skip (the training loop
joins a last one to the batch before it). A device computes three forward passes and one backward
pass, and holds three networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.training_multiply_adds import Pass
from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.inactive_mechanisms import one_round
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.methods.fedavg import fedavg, recipe
from federated.task import Recipe
from federated.training.hooks import Hooks, Session
from federated.training.training_step import plain_loss
from models.layers.batch_norm import norms
from models.submodel import Submodel

__all__ = ["contrast", "moon"]

FEATURES = ("projection",)
PREVIOUS = "previous/"  # prefix in a device's memory: previous/SUBMODEL/NAME


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor | None, temperature: float) -> Tensor:
    """Return l_con of representations [N, D], as mean over the batch; 0 without z_prev."""
    views = [z_glob] if z_prev is None else [z_glob, z_prev]
    logits = torch.stack([F.cosine_similarity(z, view) / temperature for view in views], 1)
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


def load_previous(session: Session) -> None:
    """Load the reference networks, if the device trained this submodel in its last round: one with
    the received weights, and one with the device's weights of that round.
    """
    prefix = f"{PREVIOUS}{session.submodel.name}/"
    kept = {
        name.removeprefix(prefix): value
        for name, value in session.memory.items()
        if name.startswith(prefix)
    }
    session.own = (copy_frozen(session, {}), copy_frozen(session, kept)) if kept else None


def copy_frozen(session: Session, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a frozen copy of the session's network, with these tensors replaced."""
    net = deepcopy(session.net).requires_grad_(False).eval()
    net.load_state_dict({**net.state_dict(), **tensors})
    if session.recipe.norm == "static":
        # their momentum is 0, so training mode changes no statistics
        for layer in norms(net).values():
            layer.training = True
    return net


def run_with_projection(net: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Call `run`, which passes a batch through the network once. Return its result and z [N, D]."""
    seen: list[Tensor] = []
    head: Any = net.linear
    handle = head.project.register_forward_hook(lambda module, inputs, out: seen.append(out))
    try:
        return run(), seen[0]
    finally:
        handle.remove()


def contrast_loss(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    """Return the recipe's own loss + mu l_con."""
    if session.own is None or len(x) == 1:
        return plain_loss(session, x, truth)
    loss, z = run_with_projection(session.net, lambda: plain_loss(session, x, truth))
    with torch.no_grad():
        z_glob, z_prev = (
            run_with_projection(net, lambda net=net: net(x))[1]  # type: ignore[misc]
            for net in session.own
        )
    options = session.recipe.options
    return loss + float(options["mu"]) * contrast(z, z_glob, z_prev, float(options["temperature"]))


def store_network(session: Session) -> None:
    """Keep the trained network for the next round, and no other."""
    prefix = f"{PREVIOUS}{session.submodel.name}/"
    session.memory = {
        prefix + name: value.detach().clone()
        for name, value in session.net.state_dict().items()
        if value.is_floating_point()
    }


def contrast_recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe with this method's hooks."""
    options = {key: float(state.settings[key]) for key in ("mu", "temperature")}
    return replace(recipe(state, submodel), hook="moon", options=options)


def passes(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """Return the device's own network, and, if there is a previous network of this submodel, the
    two reference networks without gradient.
    """
    frozen = Pass(submodel, 2, learns=False)
    return (Pass(submodel), frozen) if before == submodel else (Pass(submodel),)


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["mu"] == 0:
        yield "mu = 0 leaves the contrast out of the loss: set method.mu above 0, such as 1.0"
    yield from one_round(menu, settings, effect="a device has no earlier network to contrast with")


def moon() -> Method:
    base = fedavg()
    own = {
        "mu": Setting(1.0, "weight of the contrastive loss", least=0),
        "temperature": Setting(0.5, "divisor of the similarities", above=0),
    }
    return replace(
        base,
        name="moon",
        summary="FedAvg with a contrastive loss: representations stay near those of the received "
        "network and away from those of the device's previous one",
        paper="Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021 (arXiv 2103.16257)",
        settings=vary(base.settings, **own),
        features=FEATURES,
        menu=partial(propose_sizes, features=FEATURES),
        recipe=contrast_recipe,
        hooks=Hooks("moon", open=load_previous, loss=contrast_loss, close=store_network),
        inactive=inactive,
        passes=passes,
    )
