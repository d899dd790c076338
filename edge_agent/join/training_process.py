"""`python -m edge_agent.join.training_process`: load the data, measure the device, and perform
tasks one at a time, apart from the agent's own process.

This process reads the job and the tasks from standard input, and answers on standard output (see
`edge_agent.join.training_process_control`). It checks between two steps whether the agent cancelled
the task.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.join.code_permission import check_allowed, check_run, import_network, load_own
from edge_agent.join.task_measurement import TaskGauge
from edge_agent.join.training_process_control import Calibrated, Channel, Compared, Job, Order
from federated.data.dataset import explain_misfit
from federated.device.attacks.known_attacks import parse_attack
from federated.device.attacks.malicious_trainer import make_malicious
from federated.device.task_execution import carry_out
from federated.device.trainers.catalogue import AUTO, DEFAULT, open_trainer
from federated.device.trainers.trainer import Trainer, uses_graphs
from federated.errors import ConfigError, DataError, EspalierError, MissingExtra, UsageError
from federated.runtime.torch_import import defer_compiler
from federated.system.child_processes import take_output
from federated.system.disk_sync import begin_sync
from federated.system.process_limits import end_with_parent, lower_priority
from federated.task import Card, Profile, Task
from federated.training.training_inputs import Execution, Stopped
from federated.wire import messages

__all__ = ["main", "serve"]

log = logging.getLogger(__name__)

REPORT_INTERVAL = 1.0  # seconds between two progress reports to the agent
NO_DATA = Card("no data", (), "uint8", 0, 0, 0, (), ())  # of a job that only measures the device


@dataclass(frozen=True)
class Site:
    """The job, the trainer, and the device's own data or None."""

    job: Job
    trainer: Trainer
    data: Any

    @property
    def card(self) -> Card:
        """Description of the data."""
        return NO_DATA if self.data is None else self.data.card()

    @property
    def runs_code(self) -> bool:
        """Whether the trainer runs the code of the networks and methods that messages name."""
        return not uses_graphs(self.trainer)


def serve(channel: Channel) -> None:
    """Receive the job, then answer requests until the agent closes the channel."""
    try:
        job = msgspec.convert(channel.receive(), Job)
        trainer = open_trainer(job.trainer, job.device)
        if job.attack:
            trainer = make_malicious(trainer, parse_attack(job.attack))
        # before the data: loading them may take minutes
        load_own(job)
        if job.model and job.trainer in (AUTO, DEFAULT) and not uses_graphs(trainer):
            import_network(job.model)
        data = _load(job, channel)
        trainer.use_threads(job.limits.threads)
        site = Site(job, trainer, data)
        channel.send({"answer": msgspec.to_builtins(site.card)})
        gauge = TaskGauge(trainer.accelerator)
        while True:
            message = channel.receive()
            if message["do"] == "task":
                answer = _perform(site, channel, gauge, message)
                channel.send({"number": message["number"], **answer})
            elif message["do"] != "cancel":  # otherwise it arrived after the end of the task
                channel.send(_answer(site, message))
    except EspalierError as error:
        channel.send(_encode_error(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(site: Site, message: dict[str, Any]) -> dict[str, Any]:
    """Answer with the result or the error. This process continues after an error."""
    try:
        return {"answer": msgspec.to_builtins(HANDLERS[message["do"]](site, message))}
    except EspalierError as error:
        return _encode_error(error)
    except ValueError as error:  # such as a network that cannot be built on this device
        return _encode_error(ConfigError(f"cannot {message['do']}: {error}"))
    except (LookupError, RuntimeError, TypeError) as error:  # such as of a forged card
        log.exception("cannot %s", message["do"])
        return _encode_error(EspalierError(f"cannot {message['do']}: {error}"))


def _encode_error(error: EspalierError) -> dict[str, Any]:
    """Encode an error so that the agent raises it again."""
    match error:
        case MissingExtra(command=command, extra=extra, package=package):
            return {"error": "extra", "arguments": (command, extra, package)}
        case ConfigError():
            return {"error": "data", "arguments": (str(error),)}
        case UsageError():
            return {"error": "usage", "arguments": (str(error),)}
        case _:
            return {"error": "other", "arguments": (str(error),)}


def _load(job: Job, channel: Channel) -> Any:
    if not job.data:
        return None
    from federated.data.download_progress import watch_downloads
    from federated.data.loading import load_device

    with watch_downloads(lambda done, total: channel.send({"downloaded": (done, total)})):
        return load_device(
            job.data,
            job.root,
            name=job.name,
            shard=job.shard or None,
            partition=job.partition,
            seed=job.seed,
        )


def _measure(site: Site, message: dict[str, Any]) -> Profile:
    from edge_agent.device.profiling import measure_profile

    if site.runs_code:
        check_run(site.job, message["run"])
    run = msgspec.convert(message["run"], messages.Run)
    profile = measure_profile(
        site.job.name, run, site.data, site.job.limits, site.trainer, fresh=message["fresh"]
    )
    return replace(profile, labels=site.job.labels, watts=site.job.watts or profile.watts)


def _describe(site: Site, message: dict[str, Any]) -> Profile:
    from edge_agent.device.profiling import describe_device

    profile = describe_device(site.job.name, site.card, site.job.limits, site.trainer)
    return replace(profile, labels=site.job.labels)


def _calibrate(site: Site, message: dict[str, Any]) -> Calibrated:
    from edge_agent.join.speed_calibration import calibrate

    order = msgspec.convert(message["order"], Order)
    return calibrate(site.job, site.data, order, site.trainer)


def _compare(site: Site, message: dict[str, Any]) -> Compared:
    from edge_agent.join.speed_calibration import compare_trainers

    order = msgspec.convert(message["order"], Order)
    return compare_trainers(site.job, site.data, order, site.trainer)


def _choose(site: Site, message: dict[str, Any]) -> str:
    from edge_agent.device.measurement_cache import MeasurementCache, describe_surroundings
    from edge_agent.join.trainer_choice import choose_trainer

    cache = MeasurementCache(describe_surroundings(site.job.limits, site.trainer.runtime))
    return choose_trainer(message["family"], cache, site.trainer)


def _check_models(site: Site, message: dict[str, Any]) -> None:
    from edge_agent.join.speed_calibration import build_network, draw_examples

    for model in message["models"]:
        build_network(model, site.data or draw_examples(model, 2))


Handled = Calibrated | Compared | Profile | str | None
HANDLERS: dict[str, Callable[[Site, dict[str, Any]], Handled]] = {
    "calibrate": _calibrate,
    "check models": _check_models,
    "choose": _choose,
    "compare": _compare,
    "describe": _describe,
    "measure": _measure,
}


def _perform(
    site: Site, channel: Channel, gauge: TaskGauge, message: dict[str, Any]
) -> dict[str, Any]:
    task = msgspec.convert(message["task"], Task)
    try:
        if site.runs_code:
            check_allowed(site.job, message["task"])
        if why := explain_misfit(site.data, task.submodel.network):
            raise DataError(why)
        gauge.begin()
        execution = Execution(
            on_step=_report_steps(channel, message["number"], gauge),
            stop=lambda: channel.ready() or gauge.before_step(),
            effort=gauge.notes,
        )
        weights, result = Path(message["weights"]), Path(message["result"])
        loss = carry_out(site.trainer, task, weights, result, site.data, execution)
        begin_sync(result)  # the agent waits for the disk when it has read the update
    except Stopped:
        channel.receive()  # the request that cancelled it
        return {"failed": "cancelled"}
    except MemoryError:
        return {"failed": f"out of memory with {task.submodel.name} at batch {task.recipe.batch}"}
    except OSError as error:
        log.exception("round %d: %s failed", task.round, task.work)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = "no disk space for the update in" if full else "cannot read or write"
        where = error.filename or message["result"]
        return {"failed": f"{problem} {where}: {error.strerror or error}", "full": full}
    except (EspalierError, RuntimeError, ValueError) as error:
        log.exception("round %d: %s failed", task.round, task.work)
        if site.trainer.accelerator is not None:
            # if this raises, the process ends, and the agent starts another
            site.trainer.accelerator.check()
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"result": message["result"], "loss": loss}


def _report_steps(
    channel: Channel, number: int, gauge: TaskGauge
) -> Callable[[int, int, float], None]:
    """Return a callback that measures each step and reports progress to the agent at intervals."""
    reported = time.monotonic()

    def step(done: int, steps: int, loss: float) -> None:
        nonlocal reported
        gauge.after_step(done, steps, loss)
        if time.monotonic() - reported > REPORT_INTERVAL:
            reported = time.monotonic()
            channel.send({"number": number, "step": done, "steps": steps})

    return step


def main() -> None:
    """Serve the agent. Ends with it, however that ends."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    end_with_parent()
    defer_compiler()
    lower_priority(5)  # the agent's heartbeats and the device's own work have priority
    serve(Channel(os.fdopen(0, "rb", buffering=0), os.fdopen(take_output(), "wb", buffering=0)))


if __name__ == "__main__":
    main()
