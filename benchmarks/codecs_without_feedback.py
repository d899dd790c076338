"""Codecs whose errors are dropped, to measure what error feedback is worth (see
`benchmarks/experiments/codecs.toml`).
"""

from __future__ import annotations

from dataclasses import replace

from federated.wire.codecs.catalogue import CODECS

__all__ = ["INT8", "TOP10"]

INT8 = replace(CODECS["int8-zstd"], name=f"{__name__}:INT8", feedback=False)
TOP10 = replace(CODECS["top10-zstd"], name=f"{__name__}:TOP10", feedback=False)
