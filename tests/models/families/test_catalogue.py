"""Families are plain data, and declare what differs between them."""

from __future__ import annotations

from dataclasses import MISSING, fields

from models.families.catalogue import FAMILIES
from models.family import Family


def test_only_what_most_families_share_has_a_default():
    """A family that forgot its help or its labelled tensors would make false statements."""
    optional = {one.name for one in fields(Family) if one.default is not MISSING}
    assert optional == {"objective", "pieces", "address", "torchvision", "texts"}


def test_families_are_plain_data():
    for name, family in FAMILIES.items():
        assert family.default in family.presets, name
        assert family.help, name
        assert "-" not in name, "a dash opens the preset"
