"""`edge-agent join --dry-run`: everything that would leave this device, made for real and shown
instead of sent.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.join.agent import find_run
from edge_agent.join.permission import load_own, run_method
from edge_agent.join.worker import Job, Worker
from federated.task import Card, Profile, Task, Update, Work
from federated.wire import messages, tensors
from federated.wire.codecs import update_file
from federated.wire.codecs.catalogue import codec
from federated.wire.links.catalogue import open_link

__all__ = ["rehearse"]

METHOD = "fedfa"  # where no broker names another
INTRODUCTION = (
    "Nothing was sent. This is all that would leave this device. It holds no example; "
    "what it says of the labels, if anything, stands "
    "under survey, labels and tallies."
)
WAIT = 30.0  # seconds for the run's card, where a broker is named
WHEN = {
    "profile": "at join, and when the device measured itself again: its limits changed, or heat "
    "held it back",
    "status": "at join and at leaving, and when the device pauses (--when) or goes on",
    "heartbeat": "every 15 s, and when the state changes",
    "train": "each round that asks this agent",
    "calibrate": "after rounds, for each submodel that it can hold",
    "evaluate": "after rounds, for each submodel that it can hold",
}


def rehearse(job: Job, broker: str | None, run: str | None, *, as_json: bool) -> str:
    """Measures, trains, calibrates and evaluates once, and gives the messages as they would be
    sent; publishes nothing.

    With a broker, for its run and by its method; without, by FedFA for a network of the default
    size.
    """
    worker = Worker(job)
    try:
        card = worker.load()
        load_own(job)
        described = _run(broker, run, card, job)
        measured = worker.measure(msgspec.to_builtins(described))
        updates = _updates(worker, job, described)
    finally:
        worker.close()
    session = secrets.token_hex(8)
    profile = msgspec.convert({**measured, "agent": job.name, "uplink": 0.0, "chunk": 0}, Profile)
    leaving = {
        "profile": msgspec.to_builtins(profile),
        "status": asdict(messages.Status(job.name, session, True)),
        "heartbeat": asdict(
            messages.Heartbeat(
                job.name, session, "train", 1, updates["train"]["header"]["notes"]["loss"]
            )
        ),
        **updates,
    }
    return json.dumps(leaving) if as_json else _readable(leaving)


def _run(broker: str | None, name: str | None, card: Card, job: Job) -> messages.Run:
    if broker is not None:
        link = open_link(broker, f"dry-{job.name[:40]}-{secrets.token_hex(3)}")
        try:
            found = find_run(link, name, WAIT)
        finally:
            link.close()
        if found.network is not None:
            return found
    from models.families.catalogue import network, probes

    made = network(
        job.model or "preresnet",
        card.inputs,
        card.outputs,
        card,
        card.target,
    )
    return messages.Run(
        "rehearsal", METHOD, made.family, made, probes(made, (2,)), 32, secrets.token_hex(8)
    )


def _updates(worker: Worker, job: Job, run: messages.Run) -> dict[str, dict[str, Any]]:
    """A real update of each kind of work, by the run's method and for its smallest submodel: its
    header, the shape of each tensor, its bytes.
    """
    from federated.settings import validated
    from models.families.catalogue import initial, statistics

    assert run.network is not None, "checked when the run was found"
    chosen = run_method(run.method)
    settings = validated(
        chosen.record, run.settings or {"rounds": 1}, f"card of run '{run.run}': {chosen.name}"
    )
    menu = chosen.menu(run.network, settings)
    state = replace(
        chosen.start(initial(run.network, 0, chosen.features), menu, settings),
        fleet=dict.fromkeys(menu, 1),
    )
    submodel = menu[0]
    sent = {
        name: value.numpy()
        for name, value in chosen.dispatch(state, chosen.place(state, submodel)).items()
    }
    plain = {name: value for name, value in sent.items() if "/" not in name}
    recipe = replace(chosen.recipe(state, submodel), epochs=1)
    measured = settings["norm"] == "static" and statistics(submodel)
    works: tuple[Work, ...] = (
        ("train", "calibrate", "evaluate") if measured else ("train", "evaluate")
    )
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        for work in works:
            task = Task(run.run, 1, 1, job.name, work, submodel, "r0", "0" * 64, 0, recipe, 600.0)
            if work == "train":
                task = replace(task, codec=run.codec)
            update, size = _perform(worker, task, sent if work == "train" else plain, Path(folder))
            found[work] = {
                "header": msgspec.to_builtins(replace(update, tensors={})),
                "tensors": {name: list(value.shape) for name, value in update.tensors.items()},
                "codec": task.codec,
                "bytes": size,
            }
            if work == "calibrate":
                plain |= update.tensors
    return found


def _perform(
    worker: Worker, task: Task, weights: Mapping[str, Any], folder: Path
) -> tuple[Update, int]:
    """The update of a task, and the bytes that it takes as it would be sent."""
    sent, result = folder / "weights", folder / f"{task.work}.update"
    sent.write_bytes(tensors.encode({}, weights))
    worker.rehearse(msgspec.to_builtins(task), sent, result)
    return update_file.decode(result.read_bytes(), codec(task.codec)), result.stat().st_size


def _readable(leaving: Mapping[str, Any]) -> str:
    lines = [INTRODUCTION]
    for what, value in leaving.items():
        lines.append(f"\n{what} ({WHEN[what]}):")
        if "tensors" in value:
            lines += [
                f"  {value['bytes']} bytes by the codec {value['codec']}; "
                f"header {json.dumps(value['header'])}"
            ]
            lines += [
                f"  {name} {'x'.join(map(str, shape))}" for name, shape in value["tensors"].items()
            ]
        else:
            lines += [f"  {key}: {json.dumps(part)}" for key, part in value.items()]
    return "\n".join(lines)
