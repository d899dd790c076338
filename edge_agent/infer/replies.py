"""Requests and replies of a serving agent, the same for HTTP and MQTT."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from edge_agent.infer.engine import Answered, Engine
from edge_agent.infer.graph_choice import Choice
from edge_agent.infer.inputs import Numbers, to_array
from export.verify import Array
from federated.errors import DataError

__all__ = ["MOST", "about", "describe_state", "parse_inputs", "reply"]

MOST = 256  # maximum number of examples per request


class _Question(msgspec.Struct):
    inputs: Numbers


def parse_inputs(body: bytes, name: str) -> Array:
    """Parse the raw examples of a request, JSON {"inputs": nested lists}. Raises DataError."""
    try:
        question = msgspec.json.decode(body, type=_Question)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f'{name}: expected JSON {{"inputs": numbers in lists}}: {error}') from error
    return to_array(question.inputs, name)


def reply(answered: Answered) -> dict[str, Any]:
    """Return answers and what produced them as plain values."""
    return {**about(answered.choice), "answers": answered.answers}


def about(choice: Choice) -> dict[str, Any]:
    """Return the fields that identify a release and how it runs here."""
    best = choice.best
    named = {
        "version": choice.version,
        "run": choice.run,
        "round": choice.round,
        "submodel": choice.submodel,
    }
    return {**named, "variant": best.kind, "provider": best.provider, "threads": best.threads}


def describe_state(engine: Engine, refused: str = "", reason: str = "") -> dict[str, Any]:
    """Return everything that an agent reports of what it serves.

    refused, reason: a later version that was rejected, and why
    """
    choice, past, counts = engine.choice, engine.past, engine.counts
    known = {} if choice is None else {**about(choice), **_measurements(choice)}
    before = None if past is None else asdict(past)
    return {
        "state": "waiting" if choice is None else "serving",
        **known,
        "before": before,
        "refused": {"version": refused, "reason": reason} if refused else None,
        **asdict(counts),
    }


def _measurements(choice: Choice) -> dict[str, Any]:
    best = choice.best
    tried = [asdict(trial) for trial in choice.trials]
    return {
        "p50": best.p50,
        "p90": best.p90,
        "accuracy": best.accuracy,
        "examples": choice.examples,
        "released_accuracy": choice.released,
        "tried": tried,
    }
