"""Run the demo: four unequal devices learn handwritten digits together, and a fifth infers without
PyTorch.

All parts are real processes over a real broker: `coordinator start`, four times `edge-agent join`
under enforced limits, `coordinator export` and `release`, and `edge-agent infer` with imports of
torch disabled. The demo prints what they report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.broker import local_broker as brokers
from federated.data import loading as data
from federated.defaults import PARTITION
from federated.errors import (
    ConfigError,
    FleetError,
    MissingExtra,
    explain_os_errors,
)
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count

__all__ = [
    "DEVICES",
    "RUN",
    "DemoOptions",
    "agent_command",
    "process",
    "process_environment",
    "python_command",
    "run_command",
    "run_demo",
    "wait_for_words",
]


@dataclass(frozen=True)
class Device:
    """An agent of the demo.

    name: its name.
    cpus: number of processors that its training may use.
    memory: limit as for `--limit-memory`.
    """

    name: str
    cpus: float
    memory: str


DEVICES = (
    Device("laptop", 0.7, "2GB"),
    Device("jetson", 0.45, "1GB"),
    Device("phone", 0.33, "700MB"),
    Device("pi", 0.2, "600MB"),
)
# The fastest sets the pace, so it measures itself before most others load the processors. The
# slowest takes longest to start and loads them least, so it starts at once.
START_ORDER = (DEVICES[0], DEVICES[-1], *DEVICES[1:-1])
RUN = "demo"
# seconds without output after which a process counts as failed; an export on a busy machine needed
# more than 100 for its first network, and two limited agents together more than 60 to join
SILENCE = 300.0
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from edge_agent.cli.main import main; main()"
)


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo.

    seed: of data, networks and training.
    rounds: number of rounds.
    limited: limit the devices' processors and memory.
    kind: of the broker.
    keep: folder for the run and all logs; None: a temporary folder.
    python: of the four devices, such as one without PyTorch; empty: this one.
    """

    seed: int = 0
    rounds: int = 9
    limited: bool = True
    kind: str = "auto"
    keep: Path | None = None
    python: str = ""


def run_demo(options: DemoOptions, say: Say) -> dict[str, Any]:
    """Run the demo; return its result as plain values.

    Raises MissingExtra, or FleetError with the end of the log of the part that failed.
    """
    start, keep = time.monotonic(), options.keep
    for package in ("torch", "safetensors", "onnx"):  # imported by processes of the demo
        if util.find_spec(package) is None:
            raise MissingExtra("coordinator demo", "coordinator,export", package)
    with ExitStack() as stack:
        folder = (
            keep.resolve()
            if keep is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-demo-")))
        )
        with explain_os_errors(ConfigError, f"--keep {keep}: cannot be created"):
            folder.mkdir(parents=True, exist_ok=True)
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, options.kind, folder / "broker"))
        say(f"broker: {broker.name} at {broker.address}")
        limited = options.limited
        names = (f"{d.name} ({d.cpus:g} cpus, {d.memory})" if limited else d.name for d in DEVICES)
        say(f"devices: {', '.join(names)}")
        command = coordinator_command(broker.address, options, folder)
        coordinator = stack.enter_context(process("coordinator", command, folder))
        agents = list[Running]()
        for device in START_ORDER:
            index = DEVICES.index(device)
            command = agent_command(device, index, broker.address, options, folder)
            agents.append(stack.enter_context(process(device.name, command, folder)))
            if len(agents) == 2:
                show = partial(repeat, (coordinator, *agents), say)
                wait_for_words(agents[0], "joined run", show)
        trained = follow(coordinator, agents, say)
        say("exporting to ONNX, and comparing with PyTorch on held-out digits")
        # without --keep, its hints would name files that are about to be deleted
        brief = say if keep is not None else skip_lines(str(folder), say)
        exported = run_command("export", export_command(trained, folder), folder, brief)
        run_command("release", release_command(broker.address, folder), folder, say)
        inferred = infer(broker.address, folder, say)
        result = summarise(trained, exported, inferred, broker, time.monotonic() - start)
    print_summary(result, say)
    return result


# ---- the commands --------------------------------------------------------------------------------


def coordinator_command(broker: str, options: DemoOptions, folder: Path) -> list[str]:
    seed, rounds = str(options.seed), str(options.rounds)
    words = f"--name {RUN} --method fedfa --data digits --min-agents {len(DEVICES)}"
    # the agents divide the data: the run only states how, for `coordinator report --compare`
    divided = f"--set simulate.agents={len(DEVICES)} --set simulate.partition={PARTITION}"
    return python_command(
        "coordinator.cli",
        "start",
        *("--broker", broker, "--runs", str(folder), "--rounds", rounds, "--seed", seed),
        *words.split(),
        *divided.split(),
        *f"--set fleet.wait={SILENCE:g} --set evaluate.every={rounds} --format json".split(),
    )


def agent_command(
    device: Device, index: int, broker: str, options: DemoOptions, folder: Path
) -> list[str]:
    limits = ["--limit-cpus", str(device.cpus), "--limit-memory", device.memory]
    shard = f"--data digits --shard {index}/{len(DEVICES)} --partition {PARTITION}"
    return [
        *(options.python or sys.executable, "-m", "edge_agent.cli", "join"),
        *("--broker", broker, "--run", RUN, "--name", device.name),
        *("--spool", str(folder / "spool" / device.name), "--wait", f"{SILENCE:g}"),
        *shard.split(),
        *("--seed", str(options.seed)),
        *(limits if options.limited else []),
        *("--format", "json"),
    ]


def export_command(trained: Mapping[str, Any], folder: Path) -> list[str]:
    submodels = sorted({agent["submodel"] for agent in trained["agents"]})
    return python_command(
        "coordinator.cli",
        "export",
        *(RUN, "--runs", str(folder), "--out", str(folder / "release")),
        *(part for name in submodels for part in ("--submodel", name)),
        *("--format", "json"),
    )


def release_command(broker: str, folder: Path) -> list[str]:
    return python_command(
        "coordinator.cli",
        "release",
        *(RUN, "--runs", str(folder), "--bundle", str(folder / "release")),
        *("--broker", broker, "--format", "json"),
    )


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", module, *arguments]


# ---- their processes -----------------------------------------------------------------------------


@dataclass
class Running:
    """A process of the demo.

    name: its name in messages.
    popen: the process.
    log: file of its output.
    repeated: number of characters of the output that `repeat` has printed.
    """

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    repeated: int = 0

    def read(self) -> str:
        """Return its output so far."""
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.read().splitlines()[-lines:])


@contextmanager
def process(name: str, command: Sequence[str], folder: Path) -> Iterator[Running]:
    """Start a process, and stop it at the end of the context."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        popen = subprocess.Popen(  # noqa: S603
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=process_environment(),
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


def process_environment() -> dict[str, str]:
    """Return the environment of a process with one thread for arithmetic, so that processes that
    share two processors do not wait for threads of each other.
    """
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def wait_for_words(
    running: Running, words: str, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Wait until a process has printed the words, has ended, or `SILENCE` seconds have passed. The
    caller finds out which. meanwhile: called again and again.
    """
    until = time.monotonic() + SILENCE
    while words not in running.read() and running.popen.poll() is None and time.monotonic() < until:
        meanwhile()
        time.sleep(0.05)


def repeat(processes: Sequence[Running], say: Say) -> bool:
    """Print the new lines of processes, except their JSON. Return True if there were any."""
    heard = False
    for one in processes:
        text = one.read()
        complete = text[one.repeated : text.rfind("\n") + 1]
        one.repeated += len(complete)
        heard = heard or bool(complete)
        mark = f"{one.name}: " if one.name in {device.name for device in DEVICES} else ""
        for line in complete.splitlines():
            if not line.startswith("{"):
                say(f"  {mark}{line}")
    return heard


def skip_lines(words: str, say: Say) -> Say:
    """Return a function that prints the lines without these words."""
    return lambda line: None if words in line else say(line)


def follow(main: Running, agents: Sequence[Running], say: Say) -> dict[str, Any]:
    """Repeat the output of a process and of agents until the process ends; return its result.
    Raises FleetError if one of them fails, or if all fall silent.
    """
    last_output = time.monotonic()
    while True:
        ended = main.popen.poll() is not None
        if repeat((main, *agents), say):
            last_output = time.monotonic()
        if ended:
            break
        failed = [a for a in agents if a.popen.poll() not in (None, 0)]
        if failed or time.monotonic() - last_output > SILENCE:
            who = failed[0] if failed else main
            raise FleetError(
                f"{who.name} {'failed' if failed else f'printed nothing for {SILENCE:.0f} s'}; "
                f"the end of its log:\n{who.tail()}"
            )
        time.sleep(0.1)
    if main.popen.returncode != 0:
        raise FleetError(
            f"{main.name} failed with exit code {main.popen.returncode}; the end of its log:\n"
            f"{main.tail()}"
        )
    result: dict[str, Any] = json.loads(main.tail(1))
    return result


def run_command(name: str, command: Sequence[str], folder: Path, say: Say) -> dict[str, Any]:
    """Run a command and repeat its output; return the JSON on its last line. Raises FleetError if
    it fails or falls silent.
    """
    with process(name, command, folder) as running:
        return follow(running, (), say)


def infer(broker: str, folder: Path, say: Say) -> dict[str, Any]:
    """Let the fifth device download the network of the smallest device and classify held-out
    digits, in a Python that cannot import torch.
    """
    held = data.load_central("digits")
    inputs = folder / "inputs.npy"
    np.save(inputs, held.x_held)
    command = [
        *(sys.executable, "-c", WITHOUT_TORCH, "infer", "--broker", broker, "--run", RUN),
        *("--name", DEVICES[-1].name, "--store", str(folder / "models")),
        *("--threads", "1", str(inputs), "--format", "json"),
    ]
    found = run_command("infer", command, folder, say)
    labels = np.array([answer["label"] for answer in found["answers"]])
    accuracy = float((labels == held.y_held).mean())
    say(
        f"inference without PyTorch: {found['submodel']}, accuracy {accuracy:.1%} on "
        f"{len(labels)} held-out digits"
    )
    return {"submodel": found["submodel"], "accuracy": accuracy, "examples": len(labels)}


# ---- the result ----------------------------------------------------------------------------------


def summarise(
    trained: Mapping[str, Any],
    exported: Mapping[str, Any],
    inferred: Mapping[str, Any],
    broker: brokers.Broker,
    seconds: float,
) -> dict[str, Any]:
    """Return the result of the demo as plain values."""
    keys = ["accuracy", "worst_accuracy", "untrained", "rounds", "agents", "bytes_up", "bytes_down"]
    return {
        **{key: trained[key] for key in keys},
        "seconds": round(seconds, 1),
        "onnx_max_abs_diff": max(
            entry["variants"][0]["max_abs_diff"] for entry in exported["submodels"]
        ),
        "inference": inferred,
        "broker": broker.name,
    }


def print_summary(result: Mapping[str, Any], say: Say) -> None:
    """Print the result of the demo."""
    sizes = ", ".join(
        f"{a['id']} {a['submodel']} ({a['parameters']:,} parameters)" for a in result["agents"]
    )
    say(f"submodels: {sizes}")
    say(
        f"accuracy on digits that no agent held: full network {result['accuracy']:.3f}, "
        f"worst submodel {result['worst_accuracy']:.3f}"
    )
    if result["untrained"]:
        say(f"not trained by any device: {', '.join(result['untrained'])}")
    say(
        f"{format_count(result['rounds'], 'round')}, {result['seconds']:.0f} s in all; ONNX within "
        f"{result['onnx_max_abs_diff']:.1e} of PyTorch"
    )
