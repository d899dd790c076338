"""Check of a device's data against the network of a run."""

from __future__ import annotations

from federated.task import Card
from models.submodel import Network

__all__ = ["explain_misfit"]

OUTPUTS = {"class": "classes", "token": "tokens", "value": "values"}


def explain_misfit(card: Card, network: Network) -> str:
    """Return why data do not fit a network; empty if they fit."""
    wanted = "token" if network.objective in {"next", "masked"} else network.objective
    if card.target != wanted:
        return f"this run needs data with a {wanted}, but {card.name} has a {card.target}"
    if card.inputs != network.inputs:
        return (
            f"this run needs examples of shape {network.inputs}, but {card.name} has "
            f"{card.inputs}: join with data of that shape (--data)"
        )
    if card.outputs > network.outputs or (wanted == "value" and card.outputs != network.outputs):
        return (
            f"this run has {network.outputs} {OUTPUTS[wanted]}, but {card.name} has "
            f"{card.outputs}: join with data that fit (--data)"
        )
    return ""
