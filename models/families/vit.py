"""The vision transformer.

Dosovitskiy et al., An Image is Worth 16x16 Words (arXiv 2010.11929): an image cut into patches, a
class token before them, learned positions, pre-norm layers, and a linear layer on the class token.
"s" with 8 to 12 layers is InCo's, "b" is torchvision's vit_b_16. "s-224" and "b-224" enlarge or
shrink every image to 224 x 224 pixels of three channels, which networks trained on ImageNet read,
as InCo and NeFL do for all data. Width scales the features of a
token, those inside each head and the hidden ones; heads and tokens stay. Layers are one section.
Initialisation is torchvision's, with a zero head.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.family import Family, Tensors, Torchvision, TypicalData, check_mask, last_linear
from models.layers.attention import Attention, FeedForward
from models.layers.basic import Standardise
from models.submodel import Network, Submodel, scale_count

__all__ = ["VIT"]

EPS = 1e-6  # of every layer norm
COLOURS = 3  # channels of the images that a network for 224 x 224 pixels reads


@dataclass(frozen=True)
class Size:
    """One size of the network.

    dim: features of a token
    heads: attention heads
    hidden: hidden features of the feed-forward in a layer
    layers: number of layers
    patch: pixels per side of a patch
    pixels: per side of the images that it resizes its inputs to; 0: it reads them as they are
    """

    dim: int
    heads: int
    hidden: int
    layers: int
    patch: int
    pixels: int = 0

    @property
    def depths(self) -> tuple[int, ...]:
        return (self.layers,)


PRESETS: Mapping[str, Size] = {
    "micro": Size(32, 4, 64, 3, 2),  # for images of 8 pixels
    "tiny-32": Size(192, 3, 768, 12, 4),
    "s-32": Size(384, 6, 1536, 12, 4),
    "tiny": Size(192, 3, 768, 12, 16),
    "s": Size(384, 6, 1536, 12, 16),
    "b": Size(768, 12, 3072, 12, 16),
    "s-224": Size(384, 6, 1536, 12, 16, 224),
    "b-224": Size(768, 12, 3072, 12, 16, 224),
}
SMALL = "vit_small_patch16_224"  # of timm
TORCHVISION = (  # names within a layer: this project's, torchvision's
    ("norm1", "ln_1."),
    ("attention.project", "self_attention.in_proj_"),
    ("attention.out", "self_attention.out_proj."),
    ("norm2", "ln_2."),
    ("feed.linear1", "mlp.0."),
    ("feed.linear2", "mlp.3."),
)


TIMM = (
    ("norm1", "norm1."),
    ("attention.project", "attn.qkv."),
    ("attention.out", "attn.proj."),
    ("norm2", "norm2."),
    ("feed.linear1", "mlp.fc1."),
    ("feed.linear2", "mlp.fc2."),
)


def convert(preset: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return torchvision's or timm's tensors under this project's names, reshaped to give heads an
    axis.
    """
    size, timm = PRESETS[preset], "cls_token" in tensors
    features = size.dim // size.heads
    names = (
        {"patches": "patch_embed.proj.", "norm": "norm.", "linear": "head."}
        if timm
        else {"patches": "conv_proj.", "norm": "encoder.ln.", "linear": "heads.head."}
    )
    stem, parts = ("blocks.", TIMM) if timm else ("encoder.layers.encoder_layer_", TORCHVISION)
    for layer in range(size.layers):
        names |= {f"sections.0.{layer}.{ours}": f"{stem}{layer}.{theirs}" for ours, theirs in parts}
    found = {
        f"{ours}.{part}": tensors[theirs + part]
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }
    token, positions = (
        ("cls_token", "pos_embed") if timm else ("class_token", "encoder.pos_embedding")
    )
    found |= {"token": tensors[token].flatten(), "positions": tensors[positions].squeeze(0)}
    shapes = {
        "project.weight": (3, size.heads, features, size.dim),
        "project.bias": (3, size.heads, features),
        "out.weight": (size.dim, size.heads, features),
    }
    axes = {name: shape for name in found for end, shape in shapes.items() if name.endswith(end)}
    return {name: value.reshape(axes.get(name, value.shape)) for name, value in found.items()}


def count_patches(network: Network, size: Size) -> tuple[int, int]:
    """Return the patches along height and width. ValueError: they do not fill the image."""
    patch = size.patch
    height, width = (size.pixels or pixels for pixels in network.inputs[1:])
    if height % patch or width % patch:
        raise ValueError(
            f"vit: images of {height} x {width} pixels do not divide into patches of "
            f"{patch} x {patch}; expected multiples of {patch}"
        )
    return height // patch, width // patch


def initialise(net: nn.Module) -> None:
    """Initialise as torchvision; unlisted weights keep PyTorch's initialisation, unlisted biases
    are 0.
    """
    for name, value in net.named_parameters():
        if name.endswith(("linear1.bias", "linear2.bias")):
            nn.init.normal_(value, std=1e-6)
        elif name.endswith("bias"):
            nn.init.zeros_(value)
        elif name == "patches.weight":
            nn.init.trunc_normal_(value, std=math.sqrt(1 / value[0].numel()))
        elif name == "positions":
            nn.init.normal_(value, std=0.02)
        elif name.endswith("project.weight"):  # one matrix of [3 heads features, dim]
            bound = math.sqrt(6 / (value.numel() // value.shape[-1] + value.shape[-1]))
            nn.init.uniform_(value, -bound, bound)
        elif name.endswith(("linear1.weight", "linear2.weight")):
            nn.init.xavier_uniform_(value)
        elif name == "linear.weight":
            nn.init.zeros_(value)


class Layer(nn.Module):
    """x + attention(norm(x)), then the same with the feed-forward; [N, T, D] -> [N, T, D]."""

    def __init__(self, dim: int, heads: int, features: int, hidden: int, *, step: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, EPS)
        self.attention = Attention(dim, heads, features, step=step)
        self.norm2 = nn.LayerNorm(dim, EPS)
        self.feed = FeedForward(dim, hidden, step=step)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """[N, C, H, W] raw -> logits or standardised values [N, outputs].

    Any layer may be absent. ValueError: the mask does not fit, or the patches do not fill the
    image.
    """

    def __init__(self, submodel: Submodel) -> None:
        super().__init__()
        network, size = submodel.network, PRESETS[submodel.network.preset]
        check_mask(submodel, size.depths, first=False)
        tokens = 1 + math.prod(count_patches(network, size))
        dim, hidden, features = (
            scale_count(submodel.width, n) for n in (size.dim, size.hidden, size.dim // size.heads)
        )
        self.standardise = Standardise(network.mean, network.std, len(network.inputs))
        self.pixels = size.pixels
        channels = COLOURS if size.pixels else network.inputs[0]
        self.patches = nn.Conv2d(channels, dim, size.patch, size.patch)
        self.token = nn.Parameter(torch.zeros(dim))
        self.positions = nn.Parameter(torch.zeros(tokens, dim))
        self.scaler: nn.Module = nn.Identity()
        layers = {
            str(index): Layer(dim, size.heads, features, hidden, step="steps" in submodel.features)
            for index, keep in enumerate(submodel.mask[0])
            if keep
        }
        self.sections = nn.ModuleList([nn.Sequential(OrderedDict(layers))])
        self.norm = nn.LayerNorm(dim, EPS)
        self.linear = nn.Linear(dim, network.outputs)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.resize(self.standardise(x))
        x = self.patches(x).flatten(2).transpose(1, 2)  # [N, patches, D]
        x = torch.cat([self.token.expand(x.shape[0], 1, -1), x], 1) + self.positions  # [N, T, D]
        x = self.sections[0](self.scaler(x))
        return self.linear(self.norm(x[:, 0]))  # type: ignore[no-any-return]

    def resize(self, x: Tensor) -> Tensor:
        """Resize images to three channels and `pixels`, if the preset does so."""
        if not self.pixels:
            return x
        if x.shape[1] == 1:
            x = x.expand(-1, COLOURS, -1, -1)
        if x.shape[2:] == (self.pixels, self.pixels):
            return x
        return F.interpolate(x, (self.pixels, self.pixels), mode="bilinear", antialias=False)


VIT = Family(
    build=ViT,
    presets=PRESETS,
    default="tiny-32",
    inputs=3,
    typical=TypicalData((3, 32, 32), 10, "class"),
    labelled=last_linear,
    features=frozenset({"projection", "scaler", "steps"}),
    help="for images of 32 x 32 pixels; `micro`: of 8 x 8; `tiny`, `s` and `b`: of 224 x 224; "
    "`s-224` and `b-224`: of any size, resized to 224 x 224",
    torchvision=Torchvision(
        {"b": "vit_b_16", "b-224": "vit_b_16"},
        convert,
        timm={"tiny": "vit_tiny_patch16_224"} | dict.fromkeys(("s", "s-224"), SMALL),
    ),
    draws=False,
)
