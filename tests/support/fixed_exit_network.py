"""A network that returns given logits at its exits, for losses computed by hand."""

from __future__ import annotations

import torch
from torch import nn


class Told(nn.Module):
    """A stand-in for a network that returns given logits [exits, N, classes] for every example."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def exits(self, x):
        return list(self.logits)
