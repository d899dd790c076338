"""The values of the options of `edge-agent`, checked, as what its commands run on."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.access.identity import free_name, machine_name
from edge_agent.device.limits import Limits, parse_size
from edge_agent.join.worker import Job
from federated.device.trainers.catalogue import DEFAULT
from federated.errors import UsageError
from federated.task import LABELS

__all__ = ["agent_name", "make_job", "own_data", "stop_on_signals", "words"]


def words(text: str) -> tuple[str, ...]:
    """What commas separate."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def own_data(options: dict[str, Any]) -> dict[str, Any]:
    """The options of with_own_data by the names that requests give them. Raises UsageError."""
    check_shard(options)
    named = {
        "root": options.pop("data_root"),
        "partition": options.pop("partition") or "dirichlet:1.0",
        "seed": options.pop("seed") or 0,
    }
    return {**options, **named}


def make_job(name: str | None, options: dict[str, Any]) -> Job:
    """The job of a worker from the flags of `join`. Raises ConfigError or UsageError."""
    check_shard(options)
    memory = options["limit_memory"]
    return Job(
        name=free_name(machine_name()) if name is None else agent_name(name),
        data=options["data"] or "digits",
        root=options["data_root"],
        shard=options["shard"] or "",
        partition=options["partition"] or "dirichlet:1.0",
        seed=options["seed"] or 0,
        device=options["device"],
        model=options["model"],
        method=options.get("method", ""),
        codec=options.get("codec", ""),
        limits=Limits(options["limit_cpus"], parse_size(memory) if memory else None),
        labels=checked_labels(options["labels"]),
        trainer=options.get("trainer", DEFAULT),
    )


def check_shard(options: Mapping[str, Any]) -> None:
    """Raises UsageError where it is said how parts are drawn, and not which of them is meant."""
    if options["shard"] is None and (
        options["partition"] is not None or options["seed"] is not None
    ):
        raise UsageError(
            "--partition and --seed say how the parts of --shard I/N are drawn: name a shard too"
        )


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Each once, in their order. Raises UsageError for one that is no word, and for too many."""
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", label):
            raise UsageError(
                f"--label: expected 1 to 64 letters, digits, '.', '_' or '-', found '{label[:80]}'"
            )
    unique = tuple(dict.fromkeys(labels))
    if len(unique) > LABELS:
        raise UsageError(f"--label: expected at most {LABELS} labels, found {len(unique)}")
    return unique


def agent_name(name: str | None) -> str:
    """The given name, checked, or this machine's own. Raises UsageError."""
    if name is None:
        return machine_name()
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or name == "all":
        raise UsageError(
            "--name: expected 1 to 64 letters, digits, '.', '_' or '-', and not 'all'; "
            f"found '{name}'"
        )
    return name


def stop_on_signals() -> threading.Event:
    """An event that ctrl-C and a service manager's SIGTERM set; a second ctrl-C interrupts at
    once.
    """
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return stop
