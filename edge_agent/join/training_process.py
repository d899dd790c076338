"""The training process: `python -m edge_agent.join.training_process FD`. Loads the data, measures,
and does tasks one by one.

It reads the job and the tasks from an inherited socket (see `edge_agent.join.worker`), and between
two steps looks
whether the present task was given up.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.device.limits import end_with_parent
from edge_agent.join.effort import Gauge
from edge_agent.join.permission import check_allowed, check_family, check_run, load_own
from edge_agent.join.worker import Channel, Job
from federated.device.task_work import carry_out
from federated.device.trainers.catalogue import open_trainer
from federated.device.trainers.trainer import Trainer
from federated.errors import ConfigError, EspalierError, MissingExtra, UsageError
from federated.runtime import files
from federated.task import CAPABILITIES, CODECS, Card, Task
from federated.training.execution import Execution, Stopped
from federated.wire import messages
from federated.wire.codecs.catalogue import codec_names

__all__ = ["main", "serve"]

log = logging.getLogger(__name__)

TELL = 1.0  # seconds between words to the agent about a training
NOTHING = Card("no data", (), "uint8", 0, 0, 0, (), ())  # of a job that only measures the device


@dataclass(frozen=True)
class Site:
    """What this process works with. data: the device's own, or None."""

    job: Job
    trainer: Trainer
    data: Any


def serve(channel: Channel) -> None:
    """Answers until the agent closes the channel: the job first, then measurements and tasks."""
    try:
        job = msgspec.convert(channel.receive(), Job)
        trainer, data = open_trainer(job.trainer, job.device), _load(job)
        load_own(job)
        trainer.use_threads(job.limits.threads)
        site = Site(job, trainer, data)
        channel.send({"card": msgspec.to_builtins(data.card() if data is not None else NOTHING)})
        gauge = Gauge(trainer.accelerator)
        while True:
            message = channel.receive()
            match message["do"]:
                case "measure":
                    channel.send(_answer(_measure, site, message))
                case "look":
                    channel.send(_look(site))
                case "calibrate":
                    channel.send(_answer(_calibrate, site, message["order"]))
                case "task":
                    channel.send(
                        {
                            "number": message["number"],
                            **_perform(site, channel, gauge, message),
                        }
                    )
                case "cancel":
                    pass  # it came after the task was done
    except EspalierError as error:
        channel.send(_refusal(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(
    make: Callable[[Site, dict[str, Any]], dict[str, Any]], site: Site, asked: dict[str, Any]
) -> dict[str, Any]:
    """What is made, or why it cannot be: a measurement that is not possible is no end of the
    others, nor of training.
    """
    try:
        return make(site, asked)
    except EspalierError as error:
        return _refusal(error)


def _refusal(error: EspalierError) -> dict[str, Any]:
    """An error as the agent's side raises it again."""
    match error:
        case MissingExtra():
            return {
                "error": "extra",
                "command": error.command,
                "extra": error.extra,
                "package": error.package,
            }
        case ConfigError():
            return {"error": "data", "reason": str(error)}
        case UsageError():
            return {"error": "usage", "reason": str(error)}
        case _:
            return {"error": "other", "reason": str(error)}


def _load(job: Job) -> Any:
    if not job.data:
        return None
    from federated.data.catalogue import device

    return device(
        job.data,
        job.root,
        name=job.name,
        shard=job.shard or None,
        partition=job.partition,
        seed=job.seed,
    )


def _measure(site: Site, message: dict[str, Any]) -> dict[str, Any]:
    from edge_agent.device.profiling import measure_profile

    check_run(site.job, message["run"])
    found = measure_profile(
        msgspec.convert(message["run"], messages.Run),
        site.data,
        site.job.limits,
        site.trainer,
        fresh=message["fresh"],
    )
    rest = {
        "data": asdict(found.data),
        "timings": [asdict(timing) for timing in found.timings],
        "survey": found.survey,
    }
    return {**asdict(found.seen), **rest, **own(site)}


def _look(site: Site) -> dict[str, Any]:
    from edge_agent.device.profiling import read_facts

    return {**asdict(read_facts(site.job.limits, site.trainer)), **own(site)}


def own(site: Site) -> dict[str, Any]:
    """What a profile has of the installation and of its owner. No more codecs or capabilities
    than a profile may name.
    """
    return {
        "labels": site.job.labels,
        "codecs": codec_names()[:CODECS],
        "capabilities": tuple(sorted(site.trainer.capabilities))[:CAPABILITIES],
    }


def _calibrate(site: Site, order: dict[str, Any]) -> dict[str, Any]:
    from edge_agent.join.calibration import Order, calibrate

    check_family(site.job, order["model"])
    return asdict(calibrate(site.job, site.data, msgspec.convert(order, Order), site.trainer))


def _perform(site: Site, channel: Channel, gauge: Gauge, message: dict[str, Any]) -> dict[str, Any]:
    task = msgspec.convert(message["task"], Task)
    try:
        check_allowed(site.job, message["task"])
        gauge.begin()
        execution = Execution(
            on_step=telling(channel, message["number"], gauge.after),
            stop=lambda: channel.ready() or gauge.before(),
            effort=gauge.notes,
        )
        weights, result = Path(message["weights"]), Path(message["result"])
        loss = carry_out(site.trainer, task, weights, result, site.data, execution)
        files.sync(result)
    except Stopped:
        channel.receive()  # the request that stopped it
        return {"failed": "cancelled"}
    except MemoryError:
        return {"failed": f"out of memory with {task.submodel.name} at batch {task.recipe.batch}"}
    except OSError as error:
        log.exception("round %d: %s failed", task.round, task.work)
        where = f"{error.filename or message['result']}: {error.strerror or error}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {
            "failed": f"no room for its update in {where}"
            if full
            else f"cannot read or write {where}",
            "full": full,
        }
    except (EspalierError, RuntimeError, ValueError) as error:
        log.exception("round %d: %s failed", task.round, task.work)
        if site.trainer.accelerator is not None:
            # if it raises, this process ends, and the agent starts another
            site.trainer.accelerator.check()
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"result": message["result"], "loss": loss}


def telling(
    channel: Channel, number: int, after: Callable[[int, int, float], None]
) -> Callable[[int, int, float], None]:
    """The same after each step, and now and then the agent is told how many there were."""
    told = time.monotonic()

    def step(done: int, steps: int, loss: float) -> None:
        nonlocal told
        after(done, steps, loss)
        if time.monotonic() - told > TELL:
            told = time.monotonic()
            channel.send({"number": number, "step": done, "steps": steps})

    return step


def main() -> None:
    """Serves the socket that the agent left open; ends with the agent, however that ends."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    end_with_parent()
    os.nice(5)  # the agent's heartbeats and the device's own work come first
    serve(Channel(Connection(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
