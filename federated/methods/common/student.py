"""What a strong device does for the weak in RecipFL (`federated.methods.recipfl`): after its own
network it trains the small one, which it teaches.

    L_S = CE(f_S(x), y) + CE(f_S(x), softmax f_L(x)) + KL(softmax h_L || softmax h_S)

f are logits and h what enters the classifier, the last term only where both have as many features
(poster, Strong-to-Weak Device Knowledge Transfer; the authors' code); of values, squared errors
take the place of the cross-entropies. The teacher is the large network as just trained, in
evaluation mode. Since no running statistics travel, the device first measures the teacher's on its
own data; those of the authors' devices are of the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.accounting import Pass
from federated.errors import Refused
from federated.method import Settings
from federated.task import Recipe
from federated.training.hooks import Hooks, Session, Survey
from federated.training.loop import batches, descend, open_session
from models.families.catalogue import build, labelled, shapes, statistics
from models.layers.batch_norm import calibrate, norms
from models.submodel import Submodel

__all__ = ["HOOKS", "PREFIX", "histogram", "passes", "student_loss", "teach", "with_student"]

PREFIX = "small/"  # of the small network's tensors on their way to a strong device and back


def with_student(
    settings: Settings, menu: Sequence[Submodel], submodel: Submodel
) -> Sequence[Submodel]:
    """The submodels that an update of one trains, smallest first: under `transfer` the largest
    one's trains the smallest too.
    """
    return (
        (menu[0], submodel)
        if settings["transfer"] and len(menu) > 1 and submodel.plain == menu[-1]
        else (submodel,)
    )


def histogram(survey: Survey) -> dict[str, list[float]]:
    """The share of each class among a device's examples, where they have classes. It leaves the
    device, in its profile.
    """
    if survey.network.objective != "class":
        return {}
    counts = torch.bincount(
        torch.from_numpy(survey.y.astype("int64")).flatten(), minlength=survey.network.outputs
    )
    return {"histogram": (counts / counts.sum()).tolist()}


def student_loss(
    logits: Tensor, teacher: Tensor, features: Tensor | None, taught: Tensor | None, y: Tensor
) -> Tensor:
    """L_S of a batch. logits, features: the student's; teacher, taught: the teacher's, without
    gradient; no features: no last term.

    y: classes, or values, which are told by their type.
    """
    if y.is_floating_point():
        found = F.mse_loss(logits, y) + F.mse_loss(logits, teacher)
    else:
        found = F.cross_entropy(logits, y) + F.cross_entropy(logits, teacher.softmax(1))
    if features is None or taught is None or features.shape != taught.shape:
        return found
    return found + F.kl_div(features.log_softmax(-1), taught.softmax(-1), reduction="batchmean")


def watched(net: nn.Module, submodel: Submodel) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """The network as a function to its logits and to what enters its last classifier, [rows,
    features]; None where that is not to be seen.
    """
    seen: list[Tensor] = []
    heads = [name.rpartition(".")[0] for name in shapes(submodel) if name in labelled(submodel)]
    if heads:
        net.get_submodule(heads[-1]).register_forward_pre_hook(
            lambda module, inputs: seen.extend(x for x in inputs[:1] if x.is_floating_point())
        )

    def both(x: Tensor) -> tuple[Tensor, Tensor | None]:
        seen.clear()
        out = net(x)
        return out, seen[-1].flatten(0, -2) if seen else None

    return both


def small_network(recipe: Recipe) -> Submodel | None:
    """The small network that a strong device trains as well; None where there is none."""
    return msgspec.convert(recipe.options["small"], Submodel) if "small" in recipe.options else None


def passes(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """The device's own network; with a small one also that, its teacher's answers, and one pass in
    all that measures the teacher's batch norm.
    """
    student = small_network(recipe)
    if student is None:
        return (Pass(submodel),)
    measuring = 1 / recipe.epochs if statistics(submodel) else 0.0
    return Pass(submodel), Pass(student), Pass(submodel, 1 + measuring, learns=False)


def teach(session: Session) -> None:
    """Trains the small network, where one came with the task, and has it sent. Raises Refused where
    it would run code of another's choice.
    """
    submodel = small_network(session.recipe)
    if submodel is None:
        return
    if (
        ":" in submodel.network.family
        and submodel.network.family != session.submodel.network.family
    ):
        raise Refused(
            f"a small network '{submodel.network.family}' beside "
            f"'{session.submodel.network.family}': only the one that was agreed to is "
            "built"
        )
    net = build(submodel).to(session.device)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(session.received[PREFIX + name])
    recipe, seed = (
        replace(session.recipe, hook="", options={}),
        int(torch.randint(2**62, (), generator=session.generator)),
    )
    student = open_session(net, submodel, recipe, session, seed=seed)
    student.round = session.round
    if norms(session.net):
        calibrate(session.net, (x for x, _ in batches(session)))
    session.net.eval()
    large, small = watched(session.net, session.submodel), watched(net, submodel)

    def lost(_: Session, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            teacher, taught = large(x)
        logits, features = small(x)
        return student_loss(logits, teacher, features, taught, y)

    descend(student, Hooks("student", loss=lost), stop=session.stop)
    session.sent |= {PREFIX + name: value.detach() for name, value in net.named_parameters()}


HOOKS = Hooks("recipfl", survey=histogram, close=teach)
