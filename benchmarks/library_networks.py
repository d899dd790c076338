"""`python -m benchmarks networks`: try which networks of torchvision and timm can be narrowed and
shortened, and whether a submodel of half the width trains and is exported.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from export import onnx_export, onnx_session
from federated.errors import ExportError
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.runtime.extension_errors import explain_lookup
from models.cost import cost
from models.families.catalogue import POINT
from models.menu import menu
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import build, full

__all__ = ["command", "list_lines", "try_network"]

SIDES = {"inception_v3": 299}  # pixels that a network needs; others take 224
NETWORKS = (
    *(
        f"torchvision:{name}"
        for name in (
            *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s"),
            *("googlenet", "inception_v3", "maxvit_t", "mnasnet1_0", "mobilenet_v2"),
            *("mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d"),
            *("shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn"),
            *("vit_b_16", "wide_resnet50_2"),
        )
    ),
    *(
        f"timm:{name}"
        for name in (
            *("convnext_atto", "convnextv2_atto", "deit_tiny_patch16_224", "densenet121", "dla34"),
            *("edgenext_xx_small", "efficientnet_b0", "efficientvit_b0", "fastvit_t8"),
            *("ghostnet_100", "hrnet_w18_small", "levit_128s", "mixer_s32_224"),
            *("mobilenetv3_small_100", "mobilenetv4_conv_small", "mobilevit_xxs"),
            *("poolformer_s12", "regnety_002", "repvgg_a0", "resnet18", "resnetv2_50"),
            *("rexnet_100", "seresnet50", "swin_tiny_patch4_window7_224"),
            *("vit_tiny_patch16_224", "xception41"),
        )
    ),
)
CLASSES, WIDTH = 10, 0.5
WHOLE = 0.5  # least part of the parameters at half width at which much of a network stays whole


@dataclass(frozen=True)
class Row:
    """What a network supports. Texts are empty, or say why not.

    parameters: of the whole network, in millions.
    narrow: its parameters at half width, relative to the whole network; 1 if it cannot be narrowed.
    blocks: blocks that can be left out.
    difference: largest difference of the exported graph's outputs from PyTorch's, relative to the
        largest output.
    width, depth, training, export: problems.
    """

    name: str
    parameters: float
    narrow: float = 1.0
    blocks: int = 0
    difference: float = 0.0
    width: str = ""
    depth: str = ""
    training: str = ""
    export: str = ""


def try_network(name: str, folder: Path) -> Row:
    """Try one network, without data of its own: examples are noise."""
    side = SIDES.get(name.partition(":")[2], 224)
    with explain_lookup(POINT):
        made = network(name, (3, side, side), CLASSES)
    whole = full(made)
    row = Row(name, cost(whole).parameters / 1e6, blocks=sum(len(m) - 1 for m in whole.mask))
    if not row.blocks:
        row = replace(row, depth="has no blocks of one class and shape")
    try:
        small = menu(made, (WIDTH,), (1,))[0]
    except ValueError as error:
        return try_submodel(replace(row, width=str(error)), whole, folder)
    narrow = cost(replace(small, mask=whole.mask)).parameters / 1e6 / row.parameters
    kept = "much of it stays whole" if narrow > WHOLE else ""
    return try_submodel(replace(row, narrow=narrow, width=kept), small, folder)


def try_submodel(row: Row, submodel: Submodel, folder: Path) -> Row:
    """Add to a row how well a submodel trains and is exported."""
    torch.manual_seed(0)
    net, made = build(submodel), submodel.network
    x = torch.rand(4, *made.inputs)
    try:
        optimiser = torch.optim.SGD(net.parameters(), 1e-3)
        F.cross_entropy(net.train()(x), torch.arange(4)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            for _ in range(4):  # so that the running statistics are those of noise
                net(x)
    except Exception as error:  # a foreign network may raise anything
        return replace(row, training=describe(error), export="not tried")
    try:
        metadata = {"run": "benchmark", "round": 0, "submodel": submodel.name}
        example = np.asarray(x[:2])
        path = onnx_export.export(net, made, example, folder / "network.onnx", metadata)
        expected = onnx_export.predict(net, made, example)
        outputs = onnx_session.load(path, threads=1).predict(example)
    except ExportError as error:
        return replace(row, export=describe(error))
    return replace(row, difference=float(abs(outputs - expected).max() / abs(expected).max()))


def describe(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def list_lines(rows: Sequence[Row]) -> list[str]:
    """Return the results as a table."""
    titles = "network", "M params", "at half width", "blocks", "trains", "exports"
    lines = ["{:36} {:>8}  {:>13}  {:>6}  {:>6}  {:>10}".format(*titles)]
    for row in rows:
        trains, exports = "no" if row.training else "yes", f"{row.difference:.0e}"
        lines.append(
            f"{row.name:36} {row.parameters:8.2f}  {row.narrow:13.2f}  {row.blocks:6}  "
            f"{trains:>6}  {'no' if row.export else exports:>10}"
        )
        problems = {"width": row.width, "training": row.training, "export": row.export}
        lines += [f"    {what}: {why}" for what, why in problems.items() if why]
    return lines


@click.command("networks")
@click.option(
    "--network", "names", multiple=True, metavar="NAME", help="try only this one; may be repeated"
)
@FORMAT
def command(names: tuple[str, ...], form: str) -> None:
    """Try networks of torchvision and timm.

    Cut each to half its width and its fewest blocks, train it for one step, export it, and compare
    the outputs of the exported graph with PyTorch's.
    """
    with (
        report_errors("python -m benchmarks networks", "networks"),
        tempfile.TemporaryDirectory(prefix="espalier-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the libraries' own
        say, rows = speaker(form), list[Row]()
        for name in names or NETWORKS:
            rows.append(try_network(name, Path(folder)))
            say(list_lines(rows[-1:])[1])
        print_result(
            {"networks": [asdict(row) for row in rows]}, form, lambda _: "\n".join(list_lines(rows))
        )
        if any(row.training or row.export for row in rows):
            sys.exit(1)
