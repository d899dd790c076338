"""One training step, as the function of tensors that is exported as a graph: loss, gradients g,
corrections, optimiser. w are the weights, w_0 those at the start of the training.

    L = sum_n weight_n loss_n / sum_n weight_n          loss_n: mean over exits, or a method's own
    g = dL/dw + pull (w - w_0) + c                      c here for FedDyn
    g = g min(1, clip / (|g| + 1e-6))
    w' = optimiser(w, g) - lr c                         c here for SCAFFOLD

`pull` is the weight of FedProx's and FedDyn's proximal term, and c the correction of SCAFFOLD or
FedDyn. The training recipe decides which of these terms the graph has; their values are inputs.
Tests compare it with `federated.training.training_loop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from export.trainstep.cross_entropy import CrossEntropy
from export.trainstep.given_draws import Draw, GivenDraws
from export.trainstep.named_tensor_function import Answers, GraphFunction, make_examples
from export.trainstep.optimisers import UPDATE_RULES
from export.trainstep.weighted_norm import WeightedNorm
from federated.device.trainers.graph_names import (
    CORRECTION,
    DRAW,
    NEXT,
    OPTION,
    PARAMETER,
    START,
    STATISTIC,
)
from federated.errors import ExportError
from federated.methods.catalogue import find_loaded_hooks
from federated.task import Recipe
from federated.training.hooks import ExitLoss, Hooks
from federated.training.objective import flatten_places, standardise_values
from models.layers.batch_norm import set_norm
from models.submodel import Network, Submodel
from models.submodel_building import rehearsal, statistics

__all__ = ["TrainingStep", "list_float_options", "make_step"]


def make_step(submodel: Submodel, recipe: Recipe, batch: int) -> GraphFunction:
    """Return a step of a recipe. Its epochs, steps and numbers do not matter.

    ExportError: the recipe has hooks other than a loss of the exits. Unknown: they are not
    installed.
    """
    hooks = find_loaded_hooks(recipe.hook) if recipe.hook else Hooks("")
    if not hooks.plain:
        raise ExportError(f"a training step with the hooks of '{recipe.hook}' requires PyTorch")
    trained, draws = rehearse(submodel, recipe, batch)
    step = TrainingStep(Answers.of(submodel), recipe, trained, draws, hooks.exit_loss)
    return GraphFunction("step", submodel, step, step.examples(batch), draws)


def rehearse(
    submodel: Submodel, recipe: Recipe, batch: int
) -> tuple[tuple[str, ...], tuple[Draw, ...]]:
    """Return the parameters that a step moves, and what it draws."""
    net, x = rehearsal(submodel, batch)
    with GivenDraws() as draws:
        outs = Answers(net.train(), submodel)(x)
    wanted = {
        name: value
        for name, value in net.named_parameters()
        if value.requires_grad and name not in recipe.frozen
    }
    total = torch.stack([out.sum() for out in outs]).sum()
    reached = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    known = zip(wanted, reached, strict=True)
    return tuple(name for name, grad in known if grad is not None), tuple(draws.found)


@dataclass(frozen=True)
class TrainingStep:
    """One step: inputs by name -> outputs by name (`federated.device.trainers.graph_names`).

    answers: of the network
    recipe: which terms the step has
    trained: the parameters that it moves
    draws: masks that it takes
    exit_loss: of a method; None: the mean over exits
    """

    answers: Answers
    recipe: Recipe
    trained: Sequence[str]
    draws: Sequence[Draw]
    exit_loss: ExitLoss | None = None

    @property
    def network(self) -> Network:
        return self.answers.submodel.network

    def examples(self, batch: int) -> dict[str, Tensor]:
        """Return an example of each input."""
        recipe, network = self.recipe, self.network
        found = make_examples(self.answers.net, network, batch)
        shapes = {
            "class": (batch,),
            "value": (batch, network.outputs),
            "next": (batch, *network.inputs),
            "masked": (batch, *network.inputs),
        }
        dtype = torch.float32 if network.objective == "value" else torch.int32
        found["y"] = torch.zeros(shapes[network.objective], dtype=dtype)
        like = {name: torch.zeros_like(found[PARAMETER + name]) for name in self.trained}
        kinds = [f"{kind}." for kind in UPDATE_RULES[recipe.optimiser].state]
        kinds += [START] if recipe.pull else []
        kinds += [CORRECTION] if recipe.variate else []
        found |= {kind + name: value for kind in kinds for name, value in like.items()}
        if recipe.norm == "tracked":
            known = statistics(self.answers.submodel)
            found |= {STATISTIC + name: torch.ones(shape) for name, shape in known.items()}
        rates = [*UPDATE_RULES[recipe.optimiser].rates]
        rates += ["pull"] if recipe.pull else []
        rates += ["clip"] if recipe.clip else []
        found |= {name: torch.tensor(1.0) for name in rates}
        if self.exit_loss is not None:
            found |= {OPTION + name: torch.tensor(1.0) for name in list_float_options(recipe)}
        if recipe.masked:
            found["classes"] = torch.ones(network.outputs)
        return found | {f"{DRAW}{i}": torch.ones(draw.shape) for i, draw in enumerate(self.draws)}

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take one step."""
        set_norm(self.answers.net.train(), self.recipe.norm)
        values = {
            name: value.detach().requires_grad_(name in self.trained)
            for name, value in self.answers.parameters_from(given).items()
        }
        known = [name for name in self.answers.statistics if STATISTIC + name in given]
        buffers = self.answers.copy_buffers()
        buffers |= {name: given[STATISTIC + name].clone() for name in known}
        draws = GivenDraws([given[f"{DRAW}{i}"] for i in range(len(self.draws))])
        with torch.enable_grad():
            with draws, WeightedNorm(given["weights"]):
                outs = self.answers.answer({**values, **buffers}, given["x"])
            loss = self._measure(outs, given)
            found = torch.autograd.grad(loss, [values[name] for name in self.trained])
        with torch.no_grad():
            grads = self._correct(dict(zip(self.trained, found, strict=True)), given)
            moved = self._move(grads, given)
        moved |= {NEXT + STATISTIC + name: buffers[name] for name in known}
        return {**moved, "loss": loss.detach()}

    def _measure(self, outs: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
        """Return the loss: the weighted mean over examples."""
        masked, weights = outs, given["weights"]
        if self.recipe.masked:
            masked = [out * given["classes"].reshape(-1, *[1] * (out.dim() - 2)) for out in outs]
        own = [measure(self.network, out, given["y"]) for out in masked]
        if self.exit_loss is None:
            each = torch.stack(own).mean(0) if len(own) > 1 else own[0]
        else:
            floats = {name: given[OPTION + name] for name in list_float_options(self.recipe)}
            each = self.exit_loss(outs, own, {**self.recipe.options, **floats})
        return (each * weights).sum() / weights.sum()

    def _correct(
        self, grads: Mapping[str, Tensor], given: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the gradients that the optimiser sees."""
        if self.recipe.pull:
            grads = {
                name: grad + given["pull"] * (given[PARAMETER + name] - given[START + name])
                for name, grad in grads.items()
            }
        if self.recipe.variate == "feddyn":
            grads = {name: grad + given[CORRECTION + name] for name, grad in grads.items()}
        if self.recipe.clip:
            norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
            factor = (given["clip"] / (norm + 1e-6)).clamp(max=1.0)
            grads = {name: grad * factor for name, grad in grads.items()}
        return grads

    def _move(self, grads: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the new parameters and the new state of the optimiser."""
        move, out = UPDATE_RULES[self.recipe.optimiser], dict[str, Tensor]()
        # ONNX Runtime computes the last layer's gradients first, if its update is the first
        for name, grad in reversed(list(grads.items())):
            before = {kind: given[f"{kind}.{name}"] for kind in move.state}
            value, state = move.apply(given[PARAMETER + name], grad, before, given)
            if self.recipe.variate == "scaffold":
                value = value - given["lr"] * given[CORRECTION + name]
            out[NEXT + PARAMETER + name] = value
            out |= {f"{NEXT}{kind}.{name}": one for kind, one in state.items()}
        return out


def list_float_options(recipe: Recipe) -> list[str]:
    """Return the options that are inputs of a graph, since they may change from round to round."""
    return [name for name, value in recipe.options.items() if isinstance(value, float)]


def measure(network: Network, out: Tensor, y: Tensor) -> Tensor:
    """Return `federated.training.objective.example_losses`: [N]."""
    if network.objective == "value":
        return (out - standardise_values(network, y)).square().mean(1)
    logits, truth = flatten_places(out, y)
    each: Tensor = CrossEntropy.apply(logits, truth.long())  # type: ignore[no-untyped-call]
    return each.reshape(len(out), -1).mean(1)
