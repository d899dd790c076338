"""Describe an exported graph inside its own file: what goes in, what comes out, and their units, so
that an app needs nothing but the file. Does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from export.onnx_session import NO_ROUND, TOKENS
from models.submodel import Network

__all__ = ["describe_graph", "describe_interface"]

AXES = {1: ("feature",), 2: ("channel", "time"), 3: ("channel", "height", "width")}
MEANINGS = {
    "class": "logits: the largest is the answer; softmax over axis 1 gives probabilities",
    "value": "values in the units of the training data",
    "next": "logits of the token after each place; softmax over axis 1 gives probabilities",
    "masked": "logits of the token at each place; softmax over axis 1 gives probabilities",
}
COLOUR = {3: "RGB for image files; otherwise as in the training data", 4: "as in the training data"}


def describe_interface(network: Network, dtype: str, classes: Sequence[str]) -> dict[str, str]:
    """Return the graph's properties `input` and `output`, as JSON.

    input: `axes`, `dtype`, and, where they apply, `range` (lowest and highest value),
        `channel_order`, and `hidden_token` (the id of a token that the network is to guess).
    output: its `axes` and `meaning`, and the `classes` in order if their names are known.

    dtype: of the raw examples.
    classes: their names, or nothing.
    """
    tokens, inputs = network.tokens, network.inputs
    axes = (
        ("place",)
        if tokens
        else AXES.get(len(inputs), tuple(f"axis{i + 1}" for i in range(len(inputs))))
    )
    given: dict[str, Any] = {"axes": ["batch", *axes], "dtype": dtype}
    if tokens:
        given["range"] = [0, tokens - 1]
    elif dtype == "uint8":
        given["range"] = [0, 255]
    if network.objective == "masked":
        given["hidden_token"] = network.outputs
    if len(inputs) == 3 and inputs[0] in COLOUR:
        given["channel_order"] = COLOUR[inputs[0]]
    each = network.objective in TOKENS  # an output for each place
    kind = "value" if network.objective == "value" else "token" if each else "class"
    made: dict[str, Any] = {
        "axes": ["batch", kind, *(axes if each else ())],
        "meaning": MEANINGS[network.objective],
    }
    if network.objective == "class" and len(classes) == network.outputs:
        made["classes"] = list(classes)
    return {"input": json.dumps(given), "output": json.dumps(made)}


def describe_graph(graph: Any, properties: dict[str, str]) -> None:
    """Write the properties `input` and `output` as doc strings of an ONNX graph, its input and its
    output.
    """
    given, made = json.loads(properties["input"]), json.loads(properties["output"])
    lines = [f"{given['dtype']} [{', '.join(given['axes'])}], raw: the graph normalises it."]
    lines += [f"Values: {given['range'][0]} to {given['range'][1]}."] if "range" in given else []
    lines += [f"Channels: {given['channel_order']}."] if "channel_order" in given else []
    lines += [f"Hidden token: {given['hidden_token']}."] if "hidden_token" in given else []
    graph.input[0].doc_string = " ".join(lines)
    graph.output[0].doc_string = f"float32 [{', '.join(made['axes'])}]: {made['meaning']}." + (
        f" Classes: {', '.join(made['classes'])}." if "classes" in made else ""
    )
    source = f"run {properties['run']}, round {properties['round']}"
    if properties["round"] == str(NO_ROUND):
        source = properties["run"]
    graph.doc_string = f"Submodel {properties['submodel']} of {source}."
