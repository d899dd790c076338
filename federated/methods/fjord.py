"""FjORD: each batch trains a random width up to the device's own (Horvath et al., Fair and Accurate
Federated Learning under heterogeneous targets with Ordered Dropout, arXiv 2102.13451, Algorithm 1).

Difference from FedAvg, on the device: each batch trains a width p drawn uniformly from those of the
menu up to the device's own. One p applies to all layers, to the leading ceil(p C) channels of each
(ordered dropout). Its gradient affects that corner of the device's weights, which are sent whole. A
coordinate is averaged, by examples, over the devices that hold it, whether or not they drew its
width.

With `kd` (self-distillation, section 3.4; the default, since the paper's FjORD is both) each batch
also passes the device's own width, and the drawn width learns from its outputs, held constant:

    CE(F_max(x), y) + (1 - alpha) CE(F_p(x), y)
                    + alpha T^2 CE(softmax(F_p(x) / T), softmax(F_max(x) / T))

At `alpha` = `temperature` T = 1, the defaults, this is the authors' code, and the paper's best. The
paper does not say whether its term is multiplied by T^2, which keeps the size of its gradients
(Hinton, Vinyals and Dean, arXiv 1503.02531). Regression uses squared errors without temperature. If
the device's own width is drawn, the last term has no gradient and is left out, so distillation
costs the narrowest devices nothing.

Batch norm: the authors keep running statistics per width, and one affine transform of which a width
takes the corner. Under static norm (the default) training uses batch statistics and the fleet
measures those of each width afterwards. Under tracked norm each width has its own, which are sent.
`affine = "separate"` also gives each width its own weights and biases of the norms (as NeFL
describes FjORD). The coordinator stores what belongs to width p as `NAME@wp`; a device receives
that of narrower widths as `wp/NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.training_multiply_adds import Pass
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods import fedavg
from federated.task import Recipe
from federated.training import objective
from federated.training.hooks import Hooks, Session
from models.layers.batch_norm import set_norm
from models.slicing import Plan, as_slices, corner
from models.submodel import Network, Submodel
from models.submodel_building import build, list_normalising, pieces, shapes, statistics

__all__ = ["fjord"]

WIDTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


def list_narrower(submodel: Submodel, widths: Sequence[float]) -> list[Submodel]:
    """Return the same blocks at each smaller width, narrowest first."""
    return [replace(submodel, width=p) for p in sorted(set(widths)) if p < submodel.width]


def name_group(submodel: Submodel) -> str:
    """Return the name of a width's own homes."""
    return f"w{submodel.width:g}"


def own_tensors(submodel: Submodel, settings: Settings) -> frozenset[str]:
    """Return the tensors that each width has of its own."""
    own = frozenset[str]()
    if settings["affine"] == "separate":
        own |= list_normalising(submodel) & shapes(submodel).keys()
    if settings["norm"] == "tracked":
        own |= statistics(submodel).keys()
    return own


# ---- coordinator -----------------------------------------------------------------------------


def place(state: State, submodel: Submodel) -> Plan:
    own = own_tensors(submodel, state.settings)
    plan = fedavg.place(state, submodel)
    rows = [
        fedavg.move_to_group(row, name_group(submodel)) if row.local in own else row
        for row in plan.rows
    ]
    for small in list_narrower(submodel, state.settings["widths"]) if own else ():
        belonging = (row for row in fedavg.place(state, small).rows if row.local in own)
        rows += [
            replace(
                fedavg.move_to_group(row, name_group(small)),
                local=f"{name_group(small)}/{row.local}",
            )
            for row in belonging
        ]
    return replace(plan, rows=tuple(rows))


def recipe(state: State, submodel: Submodel) -> Recipe:
    settings = state.settings
    options = {key: settings[key] for key in ("kd", "alpha", "temperature")}
    options["widths"] = list(settings["widths"])
    return replace(fedavg.recipe(state, submodel), hook="fjord", options=options)


def drawn_submodels(
    settings: Settings, menu: Sequence[Submodel], submodel: Submodel
) -> Sequence[Submodel]:
    """Return the submodel and those of the menu that have the same blocks at smaller widths. A
    device draws among these for each batch.
    """
    return [
        other for other in menu if other.mask == submodel.mask and other.width <= submodel.width
    ]


# ---- device ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NestedNetwork:
    """Narrower network that reads its parameters from the corners of the device's.

    net: the network
    own: names of the tensors that it has of its own
    prefix: of the names of these when they are sent
    """

    net: nn.Module
    own: frozenset[str]
    prefix: str

    @classmethod
    def build(cls, session: Session, small: Submodel) -> NestedNetwork:
        net = build(small)
        prefix = f"{name_group(small)}/"
        own = {
            name.removeprefix(prefix): value
            for name, value in session.received.items()
            if name.startswith(prefix)
        }
        net.load_state_dict(own, strict=False)
        set_norm(net, session.recipe.norm)
        return cls(net.to(session.device).train(), frozenset(own), prefix)

    def answer(self, session: Session, x: Tensor) -> Tensor:
        """Return the outputs for a batch."""
        wide = dict(session.net.named_parameters())
        parts = {
            name: wide[name][as_slices(corner(p.shape))]
            for name, p in self.net.named_parameters()
            if name not in self.own
        }
        return functional_call(self.net, parts, (x,))  # type: ignore[no-any-return]


def open_widths(session: Session) -> None:
    """Build the narrower networks, and train their own parameters too."""
    nested = [
        NestedNetwork.build(session, small)
        for small in list_narrower(session.submodel, session.recipe.options["widths"])
    ]
    session.own = nested
    session.parameters += [
        p for one in nested for name, p in one.net.named_parameters() if name in one.own
    ]


def close_widths(session: Session) -> None:
    """Send the tensors of each width alone."""
    for one in session.own:
        tensors = one.net.state_dict()
        session.sent |= {one.prefix + name: tensors[name] for name in one.own}


def loss(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    """Return the loss of the drawn width; with kd, also that of the device's own width, which
    teaches the drawn one.
    """
    # the last index is the device's own width
    drawn = int(torch.randint(len(session.own) + 1, (), generator=session.generator))
    network, held, options = session.submodel.network, session.held, session.recipe.options
    narrow = session.own[drawn] if drawn < len(session.own) else None
    alpha = float(options["alpha"])
    if narrow is None or not options["kd"]:
        out = session.net(x) if narrow is None else narrow.answer(session, x)
        found = objective.masked_loss(network, out, truth, held)
        # the labels of the device's own width count as both widths'
        return (2 - alpha) * found if options["kd"] else found
    full, out = session.net(x), narrow.answer(session, x)
    if held is not None:
        full, out = objective.mask_logits(full, held), objective.mask_logits(out, held)
    found = objective.loss(network, full, truth)
    taught = distillation_loss(network, out, full.detach(), options["temperature"])
    found = found + alpha * taught
    return found + (1 - alpha) * objective.loss(network, out, truth) if alpha < 1 else found


def distillation_loss(network: Network, out: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy with the teacher's probabilities, both at a temperature T, times
    T^2; for values, the squared error.
    """
    if network.objective == "value":
        return F.mse_loss(out, teacher)
    truth = (teacher / temperature).softmax(1)
    return F.cross_entropy(out / temperature, truth) * temperature**2


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if any(map(pieces, menu)):
        raise ConfigError(
            f"method fjord cannot use {menu[0].network.family}, whose channels are concatenated "
            "or form heads: use another method"
        )
    if not any(list_narrower(submodel, settings["widths"]) for submodel in menu):
        yield (
            f"widths {list(settings['widths'])} leave no narrower width to draw: set "
            "method.widths to at least two values"
        )
    elif not settings["kd"]:
        yield "kd = false lets no width learn from a wider one: set method.kd = true"
    elif not settings["alpha"]:
        yield "alpha = 0 lets no width learn from a wider one: set method.alpha above 0"


def passes(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """Return one pass per batch, through a random width. With kd, every batch also passes the
    device's own width, once if that is the drawn one.
    """
    narrow, own = list_narrower(submodel, recipe.options["widths"]), Pass(submodel)
    share = 1 / (len(narrow) + 1)
    return (
        *(Pass(one, share) for one in narrow),
        own if recipe.options["kd"] else replace(own, times=share),
    )


def fjord() -> Method:
    base = fedavg.fedavg()
    training = {
        "epochs": 1,
        "batch": 32,
        "lr": 0.1,
        "momentum": 0.0,
        "decay": 1e-4,
        "norm": "static",
    }
    return replace(
        base,
        name="fjord",
        summary="ordered dropout: each batch trains a random width up to the device's own, nested "
        "in the wider networks",
        paper="Horvath et al., FjORD, NeurIPS 2021 (arXiv 2102.13451)",
        settings=vary(
            base.settings,
            widths=WIDTHS,
            sharing=None,
            affine=Setting(
                "shared",
                "weights and biases of normalisation layers: shared by all widths, or separate",
                ("shared", "separate"),
            ),
            kd=Setting(
                True,
                "self-distillation: the sampled width learns from the outputs of the device's full "
                "width",
            ),
            alpha=Setting(
                1.0,
                "with kd: weight of the full width's outputs; that of the labels is 1 - alpha",
                least=0,
                most=1,
            ),
            temperature=Setting(1.0, "with kd: temperature of the outputs", above=0),
            **training,
        ),
        place=place,
        recipe=recipe,
        trains=drawn_submodels,
        hooks=Hooks("fjord", open=open_widths, loss=loss, close=close_widths),
        inactive=inactive,
        passes=passes,
    )
