"""Record the live view of `coordinator start` as a picture for the README."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import tempfile
import termios
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import (
    DEVICES,
    DemoOptions,
    agent_command,
    process,
    process_environment,
    python_command,
    wait_for_words,
)

__all__ = ["record_live_view", "render_svg", "start_agents"]

COLUMNS = 90
# what rich writes to replace a frame: clear a line and move up, repeated
REDRAW = re.compile(r"\r?(?:\x1b\[2K|\x1b\[1A)+")


def record_live_view(path: Path) -> None:
    """Run the demo's four agents on digits, and write a frame of the coordinator's live view as
    SVG. This takes about two minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(render_svg(choose_frame(record_frames(Path(folder)))))


def record_frames(folder: Path) -> list[str]:
    """Return what a run shows in a terminal, frame by frame, with its escape codes for colours."""
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (40, COLUMNS))
    shown = bytearray()
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "auto", folder / "broker"))
        options = f"--name demo --rounds 13 --min-agents {len(DEVICES)} --set evaluate.every=13"
        command = python_command(
            "coordinator.cli",
            "start",
            *("--broker", broker.address, "--runs", str(folder), *options.split()),
        )
        coordinator = subprocess.Popen(  # noqa: S603
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            env={**process_environment(), "TERM": "xterm-256color"},
        )
        stack.callback(coordinator.terminate)
        os.close(side)
        reader = threading.Thread(target=read_all, args=(main, shown))
        reader.start()
        start_agents(stack, broker.address, folder)
        reader.join()
    return REDRAW.split(shown.decode().replace("\r\n", "\n"))


def start_agents(stack: ExitStack, broker: str, folder: Path) -> None:
    """Start the demo's agents, until the stack is closed."""
    for index, device in enumerate(DEVICES):
        command = agent_command(device, index, broker, DemoOptions(), folder)
        agent = stack.enter_context(process(device.name, command, folder))
        if index == 0:
            wait_for_words(agent, "joined run")  # the fastest measures itself undisturbed


def read_all(descriptor: int, into: bytearray) -> None:
    """Read a terminal until its programs have ended."""
    with suppress(OSError), open(descriptor, "rb", buffering=0) as terminal:
        while data := terminal.read(65536):
            into += data


AGENT = re.compile(r"^\w+ +(w\S+) +(\w+) +(\d\.\d{3})?", re.MULTILINE)


def choose_frame(frames: Sequence[str]) -> str:
    """Return the last of the frames in which the agents' submodels and states differ most, and most
    of them have a loss.
    """

    def count(frame: str) -> int:
        rows = AGENT.findall(frame.partition("accuracy")[0])
        submodels, states, losses = zip(*rows, strict=True) if rows else ((), (), ())
        return len(set(submodels)) + len(set(states)) + len(list(filter(None, losses)))

    return max(reversed([f for f in frames if "accuracy" in f]), key=count)


def render_svg(frame: str) -> str:
    """Return a frame as SVG."""
    text = Text.from_ansi(frame.rstrip())
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text)
    return console.export_svg(title="coordinator start --method fedfa --min-agents 4")
