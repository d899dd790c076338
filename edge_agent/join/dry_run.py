"""`edge-agent join --dry-run`: perform the work of a run and show every message that would leave
this device, without sending any.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.join.code_permission import find_allowed_method, load_own
from edge_agent.join.participation import find_run
from edge_agent.join.training_process_control import Job, Worker
from federated.defaults import METHOD, MODEL
from federated.device.trainers.catalogue import AUTO, DEFAULT
from federated.errors import UsageError
from federated.runtime.console import show_progress
from federated.task import Card, Task, Update, Work
from federated.wire import messages, tensors
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.codecs.codec import decode_update
from federated.wire.links.catalogue import open_link

__all__ = ["perform_dry_run"]

INTRODUCTION = (
    "Nothing was sent. The following is all that would leave this device. It contains no examples; "
    "information about labels, if any, is under survey, labels and tallies."
)
WAIT = 30.0  # seconds for a run at the broker
OCCASIONS = {
    "profile": "when joining, and when the device measures itself again: its limits changed, or it "
    "throttles",
    "status": "when joining, leaving, pausing (--when) and resuming",
    "heartbeat": "every 15 s, and when the state changes",
    "train": "in each round that selects this agent",
    "calibrate": "after rounds, for each submodel that it can hold",
    "evaluate": "after rounds, for each submodel that it can hold",
}


def perform_dry_run(job: Job, broker: str | None, run: str | None, *, as_json: bool) -> str:
    """Measure, train, calibrate and evaluate once, and return the messages that would be sent.

    With a broker, follow its run and method; without, FedFA with a network of the default size.
    Raises UsageError for a trainer that needs a coordinator's graphs.
    """
    if job.trainer == "onnx":
        raise UsageError(
            "--dry-run cannot train with --trainer onnx, since no coordinator exports graphs for "
            f"it: add --trainer {DEFAULT}, whose updates have the same form"
        )
    if job.trainer == AUTO:
        job = replace(job, trainer=DEFAULT)
    with closing(Worker(job)) as worker:
        with show_progress("loading the data", of_bytes=True) as show:
            card = worker.load(show)
        load_own(job)
        target = _find_run(broker, run, card, job)
        with show_progress("measuring this device"):
            profile = worker.measure(target)
        with show_progress("training and evaluating once"):
            updates = _make_updates(worker, job, target)
    session = secrets.token_hex(8)
    loss = updates["train"]["header"]["notes"]["loss"]
    sent = {
        "profile": msgspec.to_builtins(profile),
        "status": asdict(messages.Status(job.name, session, True)),
        "heartbeat": asdict(messages.Heartbeat(job.name, session, "train", 1, loss)),
        **updates,
    }
    return json.dumps(sent) if as_json else _format(sent)


def _find_run(broker: str | None, name: str | None, card: Card, job: Job) -> messages.Run:
    if broker is not None:
        client = f"dry-{job.name[:40]}-{secrets.token_hex(3)}"
        with closing(open_link(broker, client)) as link:
            run = find_run(link, name, WAIT)
        if run.network is not None:
            return run
    from models.menu import probes
    from models.named_network import network

    net = network(job.model or MODEL, card.inputs, card.outputs, card, card.target)
    return messages.Run(
        "rehearsal", METHOD, net.family, net, probes(net, (2,)), 32, secrets.token_hex(8)
    )


def _make_updates(worker: Worker, job: Job, run: messages.Run) -> dict[str, dict[str, Any]]:
    """Perform each kind of work with the run's method and its smallest submodel. Return the header,
    tensor shapes, codec and bytes of each update.
    """
    from federated.settings_validation import validate
    from models.submodel_building import initial, statistics

    assert run.network is not None, "checked when the run was found"
    method = find_allowed_method(run.method)
    settings = validate(
        method.record, run.settings or {"rounds": 1}, f"card of run '{run.run}': {method.name}"
    )
    menu = method.menu(run.network, settings)
    state = replace(
        method.start(initial(run.network, 0, method.features), menu, settings),
        fleet=dict.fromkeys(menu, 1),
    )
    submodel = menu[0]
    dispatched = method.dispatch(state, method.place(state, submodel))
    weights = {name: value.numpy() for name, value in dispatched.items()}
    plain = {name: value for name, value in weights.items() if "/" not in name}
    recipe = replace(method.recipe(state, submodel), epochs=1)
    calibrates = settings["norm"] == "static" and statistics(submodel)
    works: tuple[Work, ...] = (
        ("train", "calibrate", "evaluate") if calibrates else ("train", "evaluate")
    )
    updates: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        for work in works:
            task = Task(run.run, 1, 1, job.name, work, submodel, "r0", "0" * 64, 0, recipe, 600.0)
            if work == "train":
                task = replace(task, codec=run.codec)
            inputs = weights if work == "train" else plain
            update, size = _perform(worker, task, inputs, Path(folder))
            updates[work] = {
                "header": msgspec.to_builtins(replace(update, tensors={})),
                "tensors": {name: list(value.shape) for name, value in update.tensors.items()},
                "codec": task.codec,
                "bytes": size,
            }
            if work == "calibrate":
                plain |= update.tensors
    return updates


def _perform(
    worker: Worker, task: Task, weights: Mapping[str, Any], folder: Path
) -> tuple[Update, int]:
    """Return the update of a task and its encoded size in bytes."""
    source, result = folder / "weights", folder / f"{task.work}.update"
    source.write_bytes(tensors.encode({}, weights))
    worker.rehearse(task, source, result)
    limit = sys.maxsize  # this device encoded it
    update = decode_update(result.read_bytes(), find_loaded_codec(task.codec), limit, weights)
    return update, result.stat().st_size


def _format(sent: Mapping[str, Any]) -> str:
    lines = [INTRODUCTION]
    for kind, message in sent.items():
        lines.append(f"\n{kind} ({OCCASIONS[kind]}):")
        if "tensors" not in message:
            lines += [f"  {key}: {json.dumps(part)}" for key, part in message.items()]
            continue
        header = json.dumps(message["header"])
        lines.append(f"  {message['bytes']} bytes, codec {message['codec']}; header {header}")
        lines += [
            f"  {name} {'x'.join(map(str, shape))}" for name, shape in message["tensors"].items()
        ]
    return "\n".join(lines)
