"""The demo: four unequal devices learn handwritten digits together, and a fifth, without PyTorch,
infers.

All are real processes over a real broker: `coordinator start`, four times `edge-agent join` under
enforced limits, `coordinator export` and `release`, and `edge-agent infer` with imports of torch
made to fail. Nothing is staged: what it prints is what they report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.broker import local as brokers
from federated.data import catalogue as data
from federated.errors import EspalierError, FleetError, MissingExtra
from federated.runtime.console import Say

__all__ = ["DEVICES", "Device", "run_demo"]


@dataclass(frozen=True)
class Device:
    """One of the demo's agents. cpus: processors that its training may use; memory: as
    `--limit-memory` takes it.
    """

    name: str
    cpus: float
    memory: str


DEVICES = (
    Device("laptop", 0.7, "2GB"),
    Device("jetson", 0.45, "1GB"),
    Device("phone", 0.33, "700MB"),
    Device("pi", 0.18, "600MB"),
)
RUN = "demo"
ROUNDS = 13
SETTINGS = ("evaluate.every=13",)
LIMIT = 100.0  # seconds without any sign of life from the run before it is given up
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from edge_agent.cli.main import main; main()"
)


def run_demo(
    *, seed: int, rounds: int, limited: bool, kind: str, keep: Path | None, say: Say
) -> dict[str, Any]:
    """Run the demo; its result as plain values. Raises MissingExtra, or EspalierError with the end
    of the log of the part that failed.
    """
    start = time.monotonic()
    # its parts import them, as processes of their own
    for package in ("torch", "safetensors", "onnx"):
        if util.find_spec(package) is None:
            raise MissingExtra("coordinator demo", "coordinator,export", package)
    with ExitStack() as stack:
        folder = (
            keep.resolve()
            if keep is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-demo-")))
        )
        folder.mkdir(parents=True, exist_ok=True)
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, kind, folder / "broker"))
        say(f"broker: {broker.name} at {broker.address}")
        say(
            "devices: "
            + ", ".join(
                f"{d.name} ({d.cpus:g} cpus, {d.memory})" if limited else d.name for d in DEVICES
            )
        )
        coordinator = stack.enter_context(
            process(
                "coordinator",
                coordinator_command(broker.address, seed, rounds or ROUNDS, folder),
                folder,
            )
        )
        agents = []
        for index, device in enumerate(DEVICES):
            command = agent_command(device, index, broker.address, seed, limited, folder)
            agents.append(stack.enter_context(process(device.name, command, folder)))
            if index == 0:
                # the quickest sets the pace: it measures itself undisturbed by the others
                wait_for_words(agents[0], "joined run")
        trained = follow(coordinator, agents, say)
        say("exporting to ONNX, and comparing with PyTorch on held-out digits")
        carried = sorted({agent["submodel"] for agent in trained["agents"]})
        exported = answer_of(export_command(carried, folder), folder, "export")
        answer_of(release_command(broker.address, folder), folder, "release")
        inferred = infer(broker.address, folder, say)
        result = summary(trained, exported, inferred, broker, time.monotonic() - start)
    tell(result, say)
    return result


# ---- the commands --------------------------------------------------------------------------------


def coordinator_command(broker: str, seed: int, rounds: int, folder: Path) -> list[str]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run = [
        "--name",
        RUN,
        "--method",
        "fedfa",
        "--data",
        "digits",
        "--min-agents",
        str(len(DEVICES)),
        "--rounds",
        str(rounds),
        "--seed",
        str(seed),
    ]
    return module(
        "coordinator.cli",
        "start",
        "--broker",
        broker,
        "--runs",
        str(folder),
        "--set",
        "fleet.wait=60",
        *run,
        *settings,
        "--format",
        "json",
    )


def agent_command(
    device: Device, index: int, broker: str, seed: int, limited: bool, folder: Path
) -> list[str]:
    limits = ["--limit-cpus", str(device.cpus), "--limit-memory", device.memory] if limited else []
    shard = [
        "--data",
        "digits",
        "--shard",
        f"{index}/{len(DEVICES)}",
        "--partition",
        "dirichlet:1.0",
        "--seed",
        str(seed),
    ]
    where = [
        "--broker",
        broker,
        "--run",
        RUN,
        "--name",
        device.name,
        "--spool",
        str(folder / "spool" / device.name),
        "--wait",
        "60",
    ]
    return module("edge_agent.cli", "join", *where, *shard, *limits, "--format", "json")


def export_command(submodels: Sequence[str], folder: Path) -> list[str]:
    wanted = [part for name in submodels for part in ("--submodel", name)]
    return module(
        "coordinator.cli",
        "export",
        RUN,
        "--runs",
        str(folder),
        "--out",
        str(folder / "release"),
        *wanted,
        "--format",
        "json",
    )


def release_command(broker: str, folder: Path) -> list[str]:
    what = ["--bundle", str(folder / "release"), "--broker", broker]
    return module(
        "coordinator.cli", "release", RUN, "--runs", str(folder), *what, "--format", "json"
    )


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


# ---- running them --------------------------------------------------------------------------------


@dataclass
class Running:
    """A process of the demo, its output going to a log."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def process(name: str, command: Sequence[str], folder: Path) -> Iterator[Running]:
    """A process that is gone when the context ends."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        popen = subprocess.Popen(  # noqa: S603
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
    try:
        yield Running(name, popen, log)
    finally:
        if popen.poll() is None:
            popen.terminate()
            try:
                popen.wait(5)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()


def environment() -> dict[str, str]:
    """One thread for arithmetic each, so that processes that share two processors do not wait for
    each other's threads.
    """
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def wait_for_words(running: Running, words: str) -> None:
    """Returns once a process has said the words, or has ended, or `LIMIT` has passed: what follows
    finds out which.
    """
    until = time.monotonic() + LIMIT
    while (
        words not in running.log.read_text(errors="replace")
        and running.popen.poll() is None
        and time.monotonic() < until
    ):
        time.sleep(0.05)


def follow(coordinator: Running, agents: Sequence[Running], say: Say) -> dict[str, Any]:
    """Repeats what the coordinator says until it ends; its result. Raises FleetError when it fails
    or falls silent.
    """
    told, heard = 0, time.monotonic()
    while True:
        ended = coordinator.popen.poll() is not None
        text = coordinator.log.read_text(errors="replace")
        complete = text[told : text.rfind("\n") + 1]
        for line in complete.splitlines():
            if not line.startswith("{"):
                say(f"  {line}")
        told, heard = told + len(complete), time.monotonic() if complete else heard
        if ended:
            break
        fallen = [a for a in agents if a.popen.poll() not in (None, 0)]
        if fallen or time.monotonic() - heard > LIMIT:
            who = fallen[0] if fallen else coordinator
            raise FleetError(
                f"{who.name} {'failed' if fallen else 'fell silent'}; the end of its "
                f"log:\n{who.tail()}"
            )
        time.sleep(0.1)
    if coordinator.popen.returncode != 0:
        raise FleetError(
            f"the coordinator failed with exit code {coordinator.popen.returncode}; the "
            f"end of its log:\n{coordinator.tail()}"
        )
    result: dict[str, Any] = json.loads(coordinator.log.read_text().splitlines()[-1])
    return result


def answer_of(command: Sequence[str], folder: Path, name: str) -> dict[str, Any]:
    """The JSON on the last line of a command. Raises EspalierError with what it said when it
    fails.
    """
    given: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "stdin": subprocess.DEVNULL,
        "env": environment(),
        "cwd": folder,
    }
    try:
        done = subprocess.run(command, timeout=LIMIT, **given)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise EspalierError(f"{name} was not done within {LIMIT:.0f} s") from error
    if done.returncode != 0:
        raise EspalierError(
            f"{name} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def infer(broker: str, folder: Path, say: Say) -> dict[str, Any]:
    """The fifth device: fetches the smallest device's network and answers for held-out digits, in a
    Python that cannot import torch.
    """
    held = data.central("digits")
    inputs = folder / "inputs.npy"
    np.save(inputs, held.x_held)
    command = [
        sys.executable,
        "-c",
        WITHOUT_TORCH,
        "infer",
        "--broker",
        broker,
        "--run",
        RUN,
        "--name",
        DEVICES[-1].name,
    ]
    answered = answer_of(
        [*command, "--store", str(folder / "models"), str(inputs), "--format", "json"],
        folder,
        "infer",
    )
    labels = np.array([answer["label"] for answer in answered["answers"]])
    right = float((labels == held.y_held).mean())
    say(
        f"an agent without PyTorch fetched {answered['submodel']} and is right on "
        f"{right:.1%} of {len(labels)} digits that no agent held"
    )
    return {"submodel": answered["submodel"], "accuracy": right, "examples": len(labels)}


# ---- what it says --------------------------------------------------------------------------------


def summary(
    trained: dict[str, Any],
    exported: dict[str, Any],
    inferred: dict[str, Any],
    broker: brokers.Broker,
    seconds: float,
) -> dict[str, Any]:
    taken = (
        "accuracy",
        "worst_accuracy",
        "untrained",
        "rounds",
        "agents",
        "bytes_up",
        "bytes_down",
    )
    return {
        **{key: trained[key] for key in taken},
        "seconds": round(seconds, 1),
        "onnx_max_abs_diff": max(
            entry["variants"][0]["max_abs_diff"] for entry in exported["submodels"]
        ),
        "inference": inferred,
        "broker": broker.name,
    }


def tell(result: dict[str, Any], say: Say) -> None:
    sizes = ", ".join(
        f"{a['id']} {a['submodel']} ({a['parameters']:,} parameters)" for a in result["agents"]
    )
    say(f"what each device carried: {sizes}")
    say(
        f"accuracy on digits that no agent held: full network {result['accuracy']:.3f}, "
        f"worst submodel {result['worst_accuracy']:.3f}"
    )
    if result["untrained"]:
        say(f"not trained by any device: {', '.join(result['untrained'])}")
    say(
        f"{result['rounds']} rounds, {result['seconds']:.0f} s in all; ONNX within "
        f"{result['onnx_max_abs_diff']:.1e} of PyTorch"
    )
