"""Train the small network on a strong device in RecipFL (`federated.methods.recipfl`): after its
own network, the device trains the small one with its own as teacher.

    L_S = CE(f_S(x), y) + CE(f_S(x), softmax f_L(x)) + KL(softmax h_L || softmax h_S)

f are logits and h the inputs of the classifier. The last term applies only if both have the same
number of features (poster, Strong-to-Weak Device Knowledge Transfer; the authors' code). For
values, squared errors replace the cross-entropies. The teacher is the large network as just
trained, in evaluation mode. Since running statistics are not sent, the device first measures the
teacher's on its own data, as the authors' devices do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.training_multiply_adds import Pass
from federated.errors import Refused
from federated.method import Settings
from federated.task import Recipe
from federated.training.hooks import Hooks, Session, Survey
from federated.training.training_loop import batches, open_session, train_session
from models.layers.batch_norm import calibrate, norms
from models.submodel import Submodel
from models.submodel_building import arrange_channels, build, find_labelled, shapes, statistics
from models.user_networks.library_networks import find_builder

__all__ = ["HOOKS", "PREFIX", "histogram", "passes", "student_loss", "teach", "with_student"]

PREFIX = "small/"  # of the small network's tensors when they are sent


def with_student(
    settings: Settings, menu: Sequence[Submodel], submodel: Submodel
) -> Sequence[Submodel]:
    """Return the submodels that an update of one trains, smallest first. Under `transfer`, an
    update of the largest one trains the smallest too.
    """
    return (
        (menu[0], submodel)
        if settings["transfer"] and len(menu) > 1 and submodel.plain == menu[-1]
        else (submodel,)
    )


def histogram(survey: Survey) -> dict[str, list[float]]:
    """Return the fraction of each class among a device's examples, if they have classes. The device
    sends it in its profile.
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
    """Return L_S of a batch.

    logits, features: the student's; without features there is no last term
    teacher, taught: the teacher's logits and features, without gradient
    y: classes as integers, or values as floats
    """
    if y.is_floating_point():
        found = F.mse_loss(logits, y) + F.mse_loss(logits, teacher)
    else:
        found = F.cross_entropy(logits, y) + F.cross_entropy(logits, teacher.softmax(1))
    if features is None or taught is None or features.shape != taught.shape:
        return found
    return found + F.kl_div(features.log_softmax(-1), taught.softmax(-1), reduction="batchmean")


def expose_features(
    net: nn.Module, submodel: Submodel
) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """Return the network as a function that returns its logits and the inputs of its last
    classifier [rows, features], or None for networks that do not expose them.
    """
    seen: list[Tensor] = []
    heads = [
        name.rpartition(".")[0] for name in shapes(submodel) if name in find_labelled(submodel)
    ]
    if heads:
        net.get_submodule(heads[-1]).register_forward_pre_hook(
            lambda module, inputs: seen.extend(x for x in inputs[:1] if x.is_floating_point())
        )

    def run(x: Tensor) -> tuple[Tensor, Tensor | None]:
        seen.clear()
        out = net(x)
        return out, seen[-1].flatten(0, -2) if seen else None

    return run


def small_network(recipe: Recipe) -> Submodel | None:
    """Return the small network that a strong device also trains, if any."""
    return msgspec.convert(recipe.options["small"], Submodel) if "small" in recipe.options else None


def passes(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """Return the device's own network; with a small one also that, its teacher's answers, and one
    pass that measures the teacher's batch norm.
    """
    student = small_network(recipe)
    if student is None:
        return (Pass(submodel),)
    measuring = 1 / recipe.epochs if statistics(submodel) else 0.0
    return Pass(submodel), Pass(student), Pass(submodel, 1 + measuring, learns=False)


def teach(session: Session) -> None:
    """Train the small network, if one came with the task, and send it. Refused: its family would
    run code that this device did not agree to.
    """
    submodel = small_network(session.recipe)
    if submodel is None:
        return
    if (
        ":" in submodel.network.family
        and submodel.network.family != session.submodel.network.family
        and find_builder(submodel.network.family) is None  # a library's name runs no given code
    ):
        raise Refused(
            f"small network '{submodel.network.family}': a custom network must be of the agreed "
            f"family '{session.submodel.network.family}'"
        )
    net = arrange_channels(build(submodel), submodel).to(session.device)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(session.received[PREFIX + name])
    recipe = replace(session.recipe, hook="", options={})
    seed = int(torch.randint(2**62, (), generator=session.generator))
    student = open_session(net, submodel, recipe, session, seed=seed)
    student.round = session.round
    if norms(session.net):
        calibrate(session.net, (x for x, _ in batches(session)))
    session.net.eval()
    large, small = expose_features(session.net, session.submodel), expose_features(net, submodel)

    def loss(_: Session, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            teacher, taught = large(x)
        logits, features = small(x)
        return student_loss(logits, teacher, features, taught, y)

    train_session(student, Hooks("student", loss=loss), stop=session.stop)
    session.sent |= {PREFIX + name: value.detach() for name, value in net.named_parameters()}


HOOKS = Hooks("recipfl", survey=histogram, close=teach)
