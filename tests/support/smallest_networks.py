"""The smallest network of each family, and shapes of data for it."""

from __future__ import annotations

from models.named_network import network
from models.submodel import Network

WIDTHS = (0.07, 0.33, 0.5, 1.0)

# family -> a small model's name, inputs, outputs, target
SMALL = {
    "densenet": ("densenet-small", (1, 32, 32), 10, "class"),
    "efficientnet": ("efficientnet-tiny", (1, 8, 8), 10, "class"),
    "lenet": ("lenet", (1, 16, 16), 10, "class"),
    "mlp": ("mlp", (6, 4), 10, "class"),
    "mobilenet": ("mobilenet-tiny", (1, 8, 8), 10, "class"),
    "preresnet": ("preresnet", (1, 8, 8), 10, "class"),
    "resnet": ("resnet-small", (1, 8, 8), 10, "class"),
    "resnet1d": ("resnet1d-tiny", (3, 20), 4, "class"),
    "transformer": ("transformer-small", (8,), 12, "token"),
    "vgg": ("vgg", (1, 8, 8), 10, "class"),
    "vit": ("vit-micro", (1, 16, 16), 10, "class"),
}


def small(family: str, preset: str = "") -> Network:
    """Return the family's small network, or another preset for the same data."""
    name, inputs, outputs, target = SMALL[family]
    return network(f"{family}-{preset}" if preset else name, inputs, outputs, target=target)
