"""Read the requests to a serving agent and make its replies, the same for HTTP and MQTT."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from edge_agent.infer.engine import Answered, Engine
from edge_agent.infer.graph_choice import Choice
from edge_agent.infer.inputs import Numbers, fit_shape, to_array
from export.onnx_session import Array, Session
from federated.errors import DataError, ExportError

__all__ = ["MAX_EXAMPLES", "describe_choice", "describe_state", "make_reply", "parse_inputs"]

MAX_EXAMPLES = 256  # maximum number of examples per request
MAX_AT_ONCE = 1 << 16  # numbers to parse at a time; each takes 32 bytes until it is in an array
SPARE = 64  # commas and brackets of a request's other fields


class _Question(msgspec.Struct):
    inputs: Numbers


class _Unparsed(msgspec.Struct):
    inputs: msgspec.Raw


def parse_inputs(body: bytes | bytearray, name: str, session: Session | None) -> Array:
    """Parse the raw examples of a request, JSON {"inputs": nested lists}.

    Brackets and commas are counted first, and large requests are parsed one example at a time, so
    that parsing takes little more memory than the result. Raises DataError, ExportError.
    """
    if session is None:
        raise ExportError("no release has arrived yet")
    numbers = _check_size(body, name, session)
    try:
        if numbers <= max(MAX_AT_ONCE, math.prod(session.inputs)):
            return to_array(msgspec.json.decode(body, type=_Question).inputs, name)
        examples = [
            fit_shape(to_array(msgspec.json.decode(one, type=Numbers), name), session, name)
            for one in _split(memoryview(msgspec.json.decode(body, type=_Unparsed).inputs), name)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f'{name}: expected JSON {{"inputs": numbers in lists}}: {error}') from error
    return np.concatenate(examples or [np.empty(0)])


def _split(text: memoryview, name: str) -> Iterator[memoryview]:
    """Yield the lists in a JSON list of lists, unparsed. Raises DataError for anything else."""
    depth, end = 0, 1  # behind the bracket that opens the outer list
    for bracket in re.finditer(rb"[][]", text):
        depth += 1 if bracket[0] == b"[" else -1
        between = (depth, bracket[0]) in ((2, b"["), (0, b"]"))
        if between and (
            bytes(text[:1]) != b"[" or bytes(text[end : bracket.start()]).strip(b", \n\r\t")
        ):
            raise DataError(f"{name}: expected a list of examples, found other values in it")
        if between:
            start = bracket.start()
        elif depth == 1 and bracket[0] == b"]":
            end = bracket.end()
            yield text[start:end]


def _check_size(body: bytes | bytearray, name: str, session: Session) -> int:
    """Return how many numbers a request has at most. Raises DataError for more than fit."""
    shape = session.inputs
    size = math.prod(shape)
    inner = sum(math.prod(shape[:axis]) for axis in range(len(shape)))  # lists of an example
    numbers, lists = body.count(b",") + 1, body.count(b"[")
    if numbers > MAX_EXAMPLES * size + SPARE or lists > MAX_EXAMPLES * inner + SPARE:
        raise DataError(
            f"{name}: expected at most {MAX_EXAMPLES} examples of shape {list(shape)}, found about "
            f"{numbers} numbers in {lists} lists"
        )
    return numbers


def make_reply(answered: Answered) -> dict[str, Any]:
    """Return answers and what produced them as plain values."""
    return {**describe_choice(answered.choice), "answers": answered.answers}


def describe_choice(choice: Choice) -> dict[str, Any]:
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
    known = {} if choice is None else {**describe_choice(choice), **_describe_measurements(choice)}
    before = None if past is None else asdict(past)
    return {
        "state": "waiting" if choice is None else "serving",
        **known,
        "before": before,
        "refused": {"version": refused, "reason": reason} if refused else None,
        **asdict(counts),
    }


def _describe_measurements(choice: Choice) -> dict[str, Any]:
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
