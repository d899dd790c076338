"""A network with exits whose answers are given: for losses by hand."""

from __future__ import annotations

import torch
from torch import nn


class Told(nn.Module):
    """Says the same logits [exits, N, classes] of every example."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def exits(self, x):
        return list(self.logits)
