"""Take one training step as a recipe describes it: loss, gradients, corrections, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from federated.task import Optimiser, Recipe
from federated.training import objective
from federated.training.hooks import Hooks, Session
from federated.training.state_between_rounds import list_state_names
from federated.training.step_corrections import Correction
from models.layers.early_exits import run_exits

__all__ = ["OPTIMISERS", "TrainingStep", "list_trained", "measure_loss", "plain_loss"]

OPTIMISERS: Mapping[Optimiser, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # PyTorch's defaults


@dataclass(frozen=True)
class TrainingStep:
    """A step that each call of `take` repeats.

    session, hooks, correction: of the training
    optimiser: of the session's parameters
    """

    session: Session
    hooks: Hooks
    correction: Correction
    optimiser: torch.optim.Optimizer

    @classmethod
    def create(cls, session: Session, hooks: Hooks, correction: Correction) -> TrainingStep:
        """Return the step of a training. Its optimiser has the state that the device kept, if the
        recipe says so, or none.
        """
        made = cls(session, hooks, correction, make_optimiser(session))
        for parameter, names in made.list_kept():
            known = {
                kind: session.memory[name] for kind, name in names.items() if name in session.memory
            }
            if known.keys() == names.keys() != set():
                # fused optimisers read all tensors of a parameter in the order of its memory
                made.optimiser.state[parameter] = {
                    kind: torch.empty_like(parameter).copy_(value) for kind, value in known.items()
                }
        return made

    def list_kept(self) -> Iterator[tuple[nn.Parameter, Mapping[str, str]]]:
        """Yield each parameter whose optimiser state the device keeps, and the names in its memory
        of the state's tensors.
        """
        recipe = self.session.recipe
        if not recipe.keep_optimiser:
            return
        trained = set(map(id, self.session.parameters))
        for name, parameter in self.session.net.named_parameters():
            if id(parameter) in trained:
                yield parameter, list_state_names(recipe, name)

    def store_state(self) -> None:
        """Store the optimiser's state in the device's memory, if the recipe says so."""
        for parameter, names in self.list_kept():
            state = self.optimiser.state.get(parameter, {})
            for kind, name in names.items():
                if state.get(kind) is not None:
                    self.session.memory[name] = state[kind]

    def take(self, x: Tensor, truth: Tensor) -> Tensor:
        """Train on a prepared batch. Return its loss."""
        session, hooks = self.session, self.hooks
        for parameter in session.parameters:  # what `zero_grad` does, without its overhead
            parameter.grad = None
        loss = measure_loss(session, hooks, x, truth)
        loss.backward()  # type: ignore[no-untyped-call]
        self.correction.add(session)
        if hooks.step is not None:
            hooks.step(session)
        if session.recipe.clip > 0:
            nn.utils.clip_grad_norm_(session.parameters, session.recipe.clip)
        self.optimiser.step()
        self.correction.move(session)
        return loss.detach()


class CountedAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, arXiv 1412.6980, Algorithm 1), with t of each coordinate, for devices
    that keep its state between rounds.

    A larger submodel than in earlier rounds has coordinates that were never trained, or in fewer
    rounds than the others. PyTorch's Adam has one t per tensor, and so corrects their moments too
    little: the first step of such a coordinate would have half the right length after ten steps of
    the others, and three times that length after thousands.

    lr: learning rate
    weight_decay: added to the gradient, or with `decoupled` subtracted from the weights (AdamW,
        Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2)
    state of a parameter: `exp_avg`, `exp_avg_sq` and `step`, each of the parameter's shape
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Tensor,
        weight_decay: float,
        *,
        decoupled: bool,
    ) -> None:
        given = {"lr": lr, "weight_decay": weight_decay, "decoupled": decoupled}
        super().__init__(parameters, given)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, group)

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Take one step of a parameter."""
        lr, decay, state = group["lr"], group["weight_decay"], self.state[parameter]
        if decay and group["decoupled"]:
            parameter.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient + decay * parameter
        for kind in () if state else ("exp_avg", "exp_avg_sq", "step"):
            state[kind] = torch.zeros_like(parameter)
        mean, square, count = state["exp_avg"], state["exp_avg_sq"], state["step"]
        count += 1
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        spread = (square / (1 - BETA2**count)).sqrt_().add_(EPS)
        parameter.sub_(mean / (1 - BETA1**count) / spread * lr)


def make_optimiser(session: Session) -> torch.optim.Optimizer:
    """Return the recipe's optimiser over the session's parameters, without state."""
    recipe, device = session.recipe, session.device
    if recipe.keep_optimiser and recipe.optimiser != "sgd":
        decoupled = recipe.optimiser == "adamw"
        return CountedAdam(session.parameters, recipe.lr, recipe.decay, decoupled=decoupled)
    made: Callable[..., torch.optim.Optimizer] = OPTIMISERS[recipe.optimiser]
    own: dict[str, Any] = {"momentum": recipe.momentum} if recipe.optimiser == "sgd" else {}
    lr: float | Tensor = recipe.lr
    if device.type == "cuda":
        lr = torch.tensor(recipe.lr, device=device)  # a captured step reads it at each replay
        own |= {} if recipe.optimiser == "sgd" else {"capturable": True}
    fused = device.type in {"cpu", "cuda"}
    return made(session.parameters, lr=lr, weight_decay=recipe.decay, fused=fused, **own)


def list_trained(net: nn.Module, recipe: Recipe) -> list[nn.Parameter]:
    """Return the parameters that a recipe trains."""
    return [p for name, p in net.named_parameters() if name not in recipe.frozen]


def measure_loss(session: Session, hooks: Hooks, x: Tensor, truth: Tensor) -> Tensor:
    """Return the loss of a prepared batch."""
    if hooks.loss is not None:
        return hooks.loss(session, x, truth)
    if hooks.exit_loss is None:
        return plain_loss(session, x, truth)
    outs, network = run_exits(session.net, session.submodel, x), session.submodel.network
    masked = outs
    if session.held is not None:
        masked = [objective.mask_logits(out, session.held) for out in outs]
    own = [objective.example_losses(network, out, truth) for out in masked]
    return hooks.exit_loss(outs, own, session.recipe.options).mean()


def plain_loss(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    """Return the recipe's own loss of a batch: the mean over exits, if there are several."""
    outs = run_exits(session.net, session.submodel, x)
    losses = [
        objective.masked_loss(session.submodel.network, out, truth, session.held) for out in outs
    ]
    return torch.stack(losses).mean() if len(losses) > 1 else losses[0]
