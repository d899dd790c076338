"""Find an attack by name."""

from __future__ import annotations

from collections.abc import Mapping

from federated.device.attacks import formulas
from federated.device.attacks.malicious_trainer import Attack
from federated.errors import Unknown, UsageError

__all__ = ["ATTACKS", "parse_attack"]

ATTACKS: Mapping[str, Attack] = {
    "backdoor": Attack(formulas.plant_backdoor, 20.0, shuffled=True),
    "inner-product": Attack(formulas.oppose_mean, 0.5, resampled=True),
    "label-shuffle": Attack(formulas.replace_with_shuffled, 1.0, shuffled=True),
    "little": Attack(formulas.deviate_a_little, 1.5, resampled=True),
    "min-max": Attack(formulas.maximise_within_spread, 1.0, resampled=True),
    "scaled": Attack(formulas.scale_up, 20.0),
    "sign-flip": Attack(formulas.flip_sign, 5.0),
    "within-bounds": Attack(formulas.hide_within_bounds, 20.0, shuffled=True),
}


def parse_attack(text: str) -> Attack:
    """Return the attack of a text KIND or KIND:STRENGTH, such as `backdoor:20`. Raises Unknown;
    UsageError for a strength that is not a positive number.
    """
    kind, colon, number = text.partition(":")
    if kind not in ATTACKS:
        raise Unknown("attack", kind, ATTACKS)
    if not colon:
        return ATTACKS[kind]
    try:
        return ATTACKS[kind].with_strength(float(number))
    except ValueError:
        raise UsageError(
            f"attack '{kind}': expected a positive number after the colon, such as {kind}:20, "
            f"found '{number}'"
        ) from None
