"""Serve the phones' page, and open it in a browser as a phone does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coordinator.simulate.demo_fleet import python_command
from federated.errors import FleetError

__all__ = ["HOST", "find_code", "join", "list_start_arguments", "make_page", "scan_code"]

HOST = "127.0.0.1"
SIZE = {"width": 390, "height": 844}  # of a phone's screen
LONGEST_WAIT = 300_000  # milliseconds until a page shows something; a busy machine takes minutes
# keeps each training: its round, and for each step its loss, and the seconds since the training
# was given to the worker
RECORD = """
window.trainings = [];
const Plain = Worker;
window.Worker = class extends Plain {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({data}) => {
      if (!("step" in data)) return;
      const {begun, losses, seconds} = window.trainings.at(-1);
      losses.push(data.loss);
      seconds.push((performance.now() - begun) / 1000);
    });
  }
  postMessage(request, ...more) {
    const task = request.job?.task;
    if (task?.work === "train") {
      window.trainings.push({round: task.round, begun: performance.now(), losses: [], seconds: []});
    }
    super.postMessage(request, ...more);
  }
};
"""


def list_start_arguments(
    folder: Path, run: str, ports: tuple[int | None, int], settings: Iterable[str]
) -> list[str]:
    """Return the arguments of `coordinator start` for a run that serves phones. folder: of the
    runs' folder and the authority. ports: of the broker, None if it runs already, and of the page.
    settings: as KEY=VALUE.
    """
    broker = [] if ports[0] is None else ["--port", str(ports[0])]
    given = *settings, f"broker.pki={folder / 'pki'}"
    return [
        *("start", "--name", run, "--runs", str(folder / "runs"), "--format", "json"),
        *(*broker, "--phones", f"{HOST}:{ports[1]}"),
        *(part for one in given for part in ("--set", one)),
    ]


def find_code(folder: Path, name: str, host: str = HOST) -> str:
    """Return the address in the code of a new phone. Raises FleetError."""
    command = python_command(
        *("coordinator.cli", "enroll", name, "--phone", "--host", host),
        *("--pki", str(folder / "pki"), "--format", "json"),
    )
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise FleetError(f"the phone {name} got no code: {done.stderr}")
    return str(json.loads(done.stdout)["url"])


def make_page(browser: Any, init: str = "", **context: Any) -> Any:
    """Return an empty page of a new phone. init: a script that runs first in the page. context:
    options of the browser's context.
    """
    made = browser.new_context(viewport=SIZE, **context)
    made.set_default_timeout(LONGEST_WAIT)
    page = made.new_page()
    page.add_init_script(RECORD + init)
    return page


def scan_code(page: Any, code: str, shard: str) -> Any:
    """Open a code's address, and return the page. shard: of the digits."""
    url, _, token = code.partition("#")
    page.goto(f"{url}?shard={shard}#{token}")
    return page


def join(page: Any) -> Any:
    """Let a phone train on digits, and return its page."""
    page.get_by_role("button", name="Train on digits").click()
    return page
