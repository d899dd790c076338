"""The default data set and partition, used where neither a flag nor a configuration names them."""

from __future__ import annotations

__all__ = ["DATA", "PARTITION", "SEED"]

DATA = "digits"
PARTITION = "dirichlet:1.0"  # the rule that draws the parts of a shard
SEED = 0  # of the partition
