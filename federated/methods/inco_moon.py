"""InCo with MOON: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464).

MOON's devices and projection head, then the cross-layer step
(`federated.methods.common.crosslayer`) on the mean of what they send.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.crosslayer import inco
from federated.methods.moon import moon

__all__ = ["inco_moon"]


def inco_moon() -> Method:
    return inco(moon(), "inco-moon")
