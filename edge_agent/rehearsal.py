"""`edge-agent join --dry-run`: everything that would leave this device, made for real and shown instead of sent."""

from __future__ import annotations

import json
import secrets
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.agent import find_run
from edge_agent.worker import Job, Worker
from federated.task import Card, Profile, Recipe, Task
from federated.wire import messages, tensors
from federated.wire.link import MqttLink
from models.submodel import Submodel

__all__ = ["rehearse"]

WAIT = 30.0  # seconds for the run's card, where a broker is named


def rehearse(job: Job, broker: str | None, run: str | None, *, as_json: bool) -> str:
    """Measures, trains one epoch on a submodel, and gives the messages as they would be sent. With a broker, for its run; publishes nothing."""
    worker = Worker(job)
    try:
        card = worker.load()
        described = _run(broker, run, card, job)
        measured = worker.measure(msgspec.to_builtins(described))
        profile = msgspec.convert({**measured, "agent": job.name, "uplink": 0.0, "chunk": 0}, Profile)
        header, shapes, size = _update(worker, job, described)
    finally:
        worker.close()
    session = secrets.token_hex(8)
    leaving = {
        "profile (once, at join)": msgspec.to_builtins(profile),
        "status (at join and at leaving)": asdict(messages.Status(job.name, session, True)),
        "heartbeat (every 15 s and at each change of state)": asdict(messages.Heartbeat(job.name, session, "train", 1, header["notes"]["loss"])),
        "update (each round)": {"header": header, "tensors": shapes, "bytes": size},
        "calibration (after a round)": "the running mean and variance of each batch norm, and the number of batches",
        "evaluation (after a round)": "the number of held-out examples, how many were right, and the mean loss",
    }
    return json.dumps(leaving) if as_json else _readable(leaving)


def _run(broker: str | None, name: str | None, card: Card, job: Job) -> messages.Run:
    if broker is not None:
        link = MqttLink(broker, f"dry-{job.name[:40]}-{secrets.token_hex(3)}")
        try:
            found = find_run(link, name, WAIT)
        finally:
            link.close()
        if found.network is not None:
            return found
    from models.families import menu, network  # torch: only the worker and this rehearsal need it

    made = network(job.model or "preresnet", card.inputs, card.outputs, card.mean, card.std)
    return messages.Run("rehearsal", "fedfa", made.family, made, menu(made, (0.5,), (2,)), 32, secrets.token_hex(8))


def _update(worker: Worker, job: Job, run: messages.Run) -> tuple[dict[str, Any], dict[str, list[int]], int]:
    """The header of a real update, the shapes of its tensors, and its bytes."""
    from models.families import initial, shapes
    from models.slicing import corners, extract

    submodel: Submodel = run.calibration[0]
    whole = initial(submodel.network, 0)
    weights = extract(whole, corners({name: tuple(value.shape) for name, value in whole.items()}, submodel, shapes(submodel)))
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        sent, result = Path(folder, "weights"), Path(folder, "update")
        sent.write_bytes(tensors.encode({}, weights))
        task = Task(run.run, 1, 1, job.name, "train", submodel, "r0", "0" * 64, sent.stat().st_size, Recipe(batch=run.batch), 600.0)
        worker.rehearse(msgspec.to_builtins(task), sent, result)
        header, found = tensors.decode(result.read_bytes())
        return header, {name: list(value.shape) for name, value in found.items()}, result.stat().st_size


def _readable(leaving: dict[str, Any]) -> str:
    lines = ["Nothing was sent. This is all that would leave this device. It holds no example; of the labels only which classes there are:"]
    for what, value in leaving.items():
        lines.append(f"\n{what}:")
        lines.append(value if isinstance(value, str) else json.dumps(value, indent=2))
    return "\n".join(lines)
