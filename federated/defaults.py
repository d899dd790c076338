"""Defaults that several commands, the configuration and the Python API share. Imports nothing, so
that `--help` can show them.
"""

from __future__ import annotations

__all__ = ["DATASET", "HELD", "MEMORY_FRACTION", "METHOD", "MODEL", "PARTITION", "SEED"]

METHOD = "fedfa"
MODEL = "preresnet"
DATASET = "digits"
HELD = 0.2  # fraction of the examples that is held out if the data have no test part
MEMORY_FRACTION = 0.6  # of a device's free memory that training may use
PARTITION = "dirichlet:1.0"  # the rule that draws the parts of a shard
SEED = 0  # of the partition
