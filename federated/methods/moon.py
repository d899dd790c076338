"""MOON: Li, He and Song, Model-Contrastive Federated Learning (arXiv 2103.16257, equation 3 and
Algorithm 1).

Against FedAvg, the network has a projection head before its last linear (feature "projection"),
whose output is z, and a device adds to its loss mu times

    l_con = -log( e^{sim(z, z_glob)/T} / (e^{sim(z, z_glob)/T} + e^{sim(z, z_prev)/T}) )

(sim is the cosine; the mean over the batch) so that z comes near that of the weights it received
and away from that of its own weights of the round before, which it keeps. Both those networks are
fixed and in evaluation mode; norms that track nothing have no statistics to evaluate with, so under
`norm = "static"` theirs normalise by the batch, as the network in training does. With several sizes
z_glob is that of the device's own submodel.

l_con is 0 in a device's first round and in its first with another submodel, since there is no
network before; and of a batch of one example, which the authors skip (the loop joins a last one to
the batch before it). A device computes three forward passes and one backward, and holds three
networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.accounting import Pass
from federated.method import Method, Setting, Settings, State, varied
from federated.methods.common.inactive import one_round
from federated.methods.fedavg import fedavg, proposal, recipe
from federated.task import Recipe
from federated.training.hooks import Hooks, Session
from federated.training.loop import plain_loss
from models.layers.batch_norm import norms
from models.submodel import Network, Submodel

__all__ = ["contrast", "moon"]

FEATURES = ("projection",)
PREVIOUS = "previous/"  # in a device's memory: previous/SUBMODEL/NAME


@dataclass(frozen=True)
class Fixed:
    """The two networks that z is compared with: of the weights received, and of the round before,
    if there was one.
    """

    received: nn.Module
    previous: nn.Module


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor | None, temperature: float) -> Tensor:
    """l_con of representations [N, D]: the mean over the batch; 0 without z_prev."""
    views = [z_glob] if z_prev is None else [z_glob, z_prev]
    logits = torch.stack([F.cosine_similarity(z, view) / temperature for view in views], 1)
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


def opened(session: Session) -> None:
    prefix = f"{PREVIOUS}{session.submodel.name}/"
    kept = {
        name.removeprefix(prefix): value
        for name, value in session.memory.items()
        if name.startswith(prefix)
    }
    session.own = Fixed(fixed(session, {}), fixed(session, kept)) if kept else None


def fixed(session: Session, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The session's network as it is now, but for these tensors; nothing in it moves."""
    net = deepcopy(session.net).requires_grad_(False).eval()
    net.load_state_dict({**net.state_dict(), **tensors})
    if session.recipe.norm == "static":
        # their momentum is 0, so that they measure and keep nothing
        for layer in norms(net).values():
            layer.training = True
    return net


def represented(net: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What `run`, which passes a batch through the network once, returns; and z [N, D]."""
    seen: list[Tensor] = []
    head: Any = net.linear
    handle = head.project.register_forward_hook(lambda module, inputs, out: seen.append(out))
    try:
        return run(), seen[0]
    finally:
        handle.remove()


def contrasted(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    """The recipe's own loss + mu l_con."""
    if session.own is None or len(x) == 1:
        return plain_loss(session, x, truth)
    loss, z = represented(session.net, lambda: plain_loss(session, x, truth))
    with torch.no_grad():
        z_glob, z_prev = (
            represented(net, lambda net=net: net(x))[1]  # type: ignore[misc]
            for net in (session.own.received, session.own.previous)
        )
    options = session.recipe.options
    return loss + float(options["mu"]) * contrast(z, z_glob, z_prev, float(options["temperature"]))


def closed(session: Session) -> None:
    """Keeps the trained network, and no other."""
    prefix = f"{PREVIOUS}{session.submodel.name}/"
    session.memory = {
        prefix + name: value.detach().clone()
        for name, value in session.net.state_dict().items()
        if value.is_floating_point()
    }


def contrasting(state: State, submodel: Submodel) -> Recipe:
    options = {
        "mu": float(state.settings["mu"]),
        "temperature": float(state.settings["temperature"]),
    }
    return replace(recipe(state, submodel), hook="moon", options=options)


def passes(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """The device's own network, and without gradient the received and the previous one, once there
    is a previous one of this submodel.
    """
    fixed = Pass(submodel, 2, learns=False)
    return (Pass(submodel), fixed) if before == submodel else (Pass(submodel),)


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """FedAvg's, with a projection head."""
    return proposal(network, settings, FEATURES)


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["mu"] == 0:
        yield "mu = 0 leaves the contrast out of the loss: set method.mu above 0, such as 1.0"
    yield from one_round(menu, settings, effect="a device has no earlier network to contrast with")


def moon() -> Method:
    base = fedavg()
    own = {
        "mu": Setting(1.0, "weight of the contrast", least=0),
        "temperature": Setting(0.5, "by which similarities are divided", above=0),
    }
    return replace(
        base,
        name="moon",
        summary="FedAvg whose devices keep their representations near the received network's and "
        "away from their own of before",
        paper="Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021 (arXiv 2103.16257)",
        settings=varied(base.settings, **own),
        features=FEATURES,
        menu=propose,
        recipe=contrasting,
        hooks=Hooks("moon", open=opened, loss=contrasted, close=closed),
        inactive=inactive,
        passes=passes,
    )
