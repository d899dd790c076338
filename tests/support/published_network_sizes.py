"""Sizes of networks as built by their authors' code, from notes stored beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.meta_device_speedups import ShapeCache
from models.submodel import Submodel
from models.submodel_building import build, example

__all__ = ["count_network", "read_published_counts"]

NOTES = Path(__file__).resolve().parents[2].parent / "shared" / "design" / "arch_counts.json"


def read_published_counts(key: str) -> tuple[int, int]:
    """Return parameters and multiply-adds under a key of the notes. Skip the test if there are
    none.
    """
    if not NOTES.exists():
        pytest.skip("the notes with the sizes of published networks are not beside this checkout")
    found = json.loads(NOTES.read_text())[key]
    return found["params"], found["macs"]


def count_network(submodel: Submodel) -> tuple[int, int]:
    """Count parameters, and the multiply-adds of one example up to every exit, as papers do;
    `models.cost` counts the deepest exit and training separately.
    """
    net = build(submodel, "meta")
    answers = net.exits if hasattr(net, "exits") else net
    with ShapeCache(), FlopCounterMode(display=False) as flops, torch.no_grad():
        answers(example(submodel.network, 2, "meta"))
    return sum(p.numel() for p in net.parameters()), flops.get_total_flops() // 4
