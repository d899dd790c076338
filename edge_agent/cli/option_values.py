"""Check the option values of `edge-agent` and convert them for its commands."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from edge_agent.access.agent_name import derive_name, reserve_name
from edge_agent.device.process_limits import Limits, parse_size
from edge_agent.join.training_process_control import Job
from federated.defaults import DATASET, PARTITION, SEED
from federated.device.trainers.catalogue import DEFAULT
from federated.errors import UsageError
from federated.task import LABELS, MOST_WATTS

__all__ = [
    "check_agent_name",
    "check_code_names",
    "make_job",
    "rename_data_options",
    "split_words",
    "stop_on_signals",
]


def split_words(text: str) -> tuple[str, ...]:
    """Split a text at commas, without empty parts."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def rename_data_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with those of `own_data` named as in requests. Raises UsageError."""
    check_shard(options)
    named = {
        "root": options.pop("data_root"),
        "partition": options.pop("partition") or PARTITION,
        "seed": options.pop("seed") or SEED,
    }
    return {**options, **named}


def make_job(name: str | None, options: dict[str, Any]) -> Job:
    """Return a worker's job from the options of `join`. Raises ConfigError, UsageError, Unknown."""
    check_shard(options)
    attack = options.get("attack", "")
    if attack:
        from federated.device.attacks.known_attacks import parse_attack  # loads numpy

        parse_attack(attack)  # raises before the broker is reached
    memory, watts = options["limit_memory"], options.get("watts") or 0.0
    if not watts <= MOST_WATTS:
        raise UsageError(f"--watts: expected at most {MOST_WATTS:g}, found {watts:g}")
    return Job(
        name=reserve_name(derive_name()) if name is None else check_agent_name(name),
        data=options["data"] or DATASET,
        root=options["data_root"],
        shard=options["shard"] or "",
        partition=options["partition"] or PARTITION,
        seed=options["seed"] or SEED,
        device=options["device"],
        model=options["model"],
        method=options.get("method", ""),
        codec=options.get("codec", ""),
        limits=Limits(options["limit_cpus"], parse_size(memory) if memory else None),
        labels=check_labels(options["labels"]),
        trainer=options.get("trainer", DEFAULT),
        attack=attack,
        watts=watts,
    )


def check_code_names(options: Mapping[str, Any]) -> None:
    """Raise UsageError if --model, --method or --codec does not name code of the owner."""
    for flag in ("model", "method", "codec"):
        name = options[flag]
        module, _, attribute = name.partition(":")
        if name and not (module and attribute):
            raise UsageError(
                f"--{flag}: expected module:{'attribute' if flag == 'codec' else 'function'}, "
                f"found '{name[:80]}'; names of installed packages need no option"
            )


def check_shard(options: Mapping[str, Any]) -> None:
    """Raise UsageError for an invalid --shard or --partition, or if --partition or --seed is set
    without --shard.
    """
    shard, partition, seed = (options[key] for key in ("shard", "partition", "seed"))
    if shard is not None:
        from federated.data.partitions import Shard  # `bench --help` need not load numpy

        Shard.parse(shard, partition or PARTITION, seed or SEED)
    elif partition is not None or seed is not None:
        raise UsageError("--partition and --seed require --shard I/N")


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels without duplicates. Raises UsageError for an invalid one or too many."""
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", label):
            raise UsageError(
                f"--label: expected 1 to 64 letters, digits, '.', '_' or '-', found '{label[:80]}'"
            )
    unique = tuple(dict.fromkeys(labels))
    if len(unique) > LABELS:
        raise UsageError(f"--label: expected at most {LABELS} labels, found {len(unique)}")
    return unique


def check_agent_name(name: str | None) -> str:
    """Return the given name, or this machine's if there is none. Raises UsageError."""
    if name is None:
        return derive_name()
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or name == "all":
        raise UsageError(
            "--name: expected 1 to 64 letters, digits, '.', '_' or '-', and not 'all'; "
            f"found '{name}'"
        )
    return name


def stop_on_signals() -> threading.Event:
    """Return an event that ctrl-C and SIGTERM set. A second signal interrupts at once."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop
