"""Losses and gradients are those of PyTorch's cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from export.trainstep.cross_entropy import CrossEntropy


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_losses_and_gradients_are_pytorchs(scale: float) -> None:
    """Also where all probabilities but one are 0."""
    torch.manual_seed(0)
    z = (scale * torch.randn(6, 5, dtype=torch.float64)).requires_grad_()
    y, g = torch.tensor([0, 4, 2, 2, 1, 3]), torch.randn(6, dtype=torch.float64)
    ours = CrossEntropy.apply(z, y)  # type: ignore[no-untyped-call]
    theirs = F.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(ours, theirs)
    (found,), (wanted,) = (torch.autograd.grad(one, z, g) for one in (ours, theirs))
    torch.testing.assert_close(found, wanted)
