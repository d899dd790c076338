"""The robust aggregation rules by name: built in, or from an extension."""

from __future__ import annotations

from federated.engine.robust.clip import CLIP
from federated.engine.robust.krum import KRUM, MULTIKRUM
from federated.engine.robust.median import MEDIAN
from federated.engine.robust.rule import Rule
from federated.engine.robust.trimmed import TRIMMED
from federated.runtime.extension_errors import find
from models.extension_lookup import ExtensionPoint

__all__ = ["RULES", "find_rule"]

POINT = ExtensionPoint("robust rule", "espalier.rules", Rule)

RULES: dict[str, Rule] = {
    "clip": CLIP,
    "krum": KRUM,
    "median": MEDIAN,
    "multikrum": MULTIKRUM,
    "trimmed": TRIMMED,
}


def find_rule(name: str) -> Rule | None:
    """Return the rule that a setting names: a built-in one, one of an installed package
    (`espalier.rules`), or `module:attribute`. Return None for "none", with which updates combine as
    the method defines.

    Unknown: no such rule; the error names the nearest. ConfigError: it cannot be imported.
    """
    return find(POINT, name, {"none": None, **RULES})
