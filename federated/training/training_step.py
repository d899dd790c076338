"""Take one training step as a recipe describes it: loss, gradients, corrections, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
STEPS = "optimiser/steps"  # in a device's memory: Adam's number of steps, [1]


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
        steps = session.memory.get(STEPS)
        for parameter, names in made.list_kept():
            known = {
                kind: session.memory[name] for kind, name in names.items() if name in session.memory
            }
            if known.keys() == names.keys() != set():
                count = {} if steps is None else {"step": steps[0].clone()}
                made.optimiser.state[parameter] = {**known, **count}
        return made

    def list_kept(self) -> Iterator[tuple[nn.Parameter, Mapping[str, str]]]:
        """Yield each parameter whose optimiser state the device keeps, and the names in its memory
        of the state's tensors.
        """
        recipe = self.session.recipe
        trained = set(map(id, self.session.parameters)) if recipe.keep_optimiser else set()
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
            if "step" in state:
                self.session.memory[STEPS] = state["step"].reshape(1)

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


def make_optimiser(session: Session) -> torch.optim.Optimizer:
    """Return the recipe's optimiser over the session's parameters, without state."""
    recipe, device = session.recipe, session.device
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
