"""Run the code blocks of a page of the documentation, as its reader would: in order, in one folder.
All traffic goes to loopback, and variables make runs short.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path

from coordinator.settings.config import load
from tests.support.page_blocks import ROOT, Block
from tests.support.processes import AGENT, COORDINATOR, Running, Start
from tests.support.waiting import eventually

__all__ = ["PageRunner"]

PROGRAMS = {"coordinator": COORDINATOR, "edge-agent": AGENT}
# commands that go on in a terminal of their own, and what they say once others can use them
READY = {"start": "stored in", "join": "joined run", "infer --serve": "listening at"}
SHORT = {
    "ESPALIER_ROUNDS": "1",
    "ESPALIER_TRAIN__STEPS": "1",
    "ESPALIER_EVALUATE__EXAMPLES": "20",
    "ESPALIER_FLEET__WAIT": "90",
    "ESPALIER_SIMULATE__WORKERS": "1",
    "EDGE_AGENT_PROFILE_BATCH": "4",
    "EDGE_AGENT_PROFILE_FAMILIES": "preresnet",
    "EDGE_AGENT_PROFILE_RUNTIMES": "torch",
    "EDGE_AGENT_FINETUNE_ANYWAY": "1",
    "EDGE_AGENT_FINETUNE_STEPS": "1",
}
PRINTED = re.compile(r"# (\S+ \d+)$", re.MULTILINE)  # a comment with a line of the output
SECONDS = 200.0  # for a command, on a busy machine
ENDED = (0, 130)  # exit codes of a command that a signal ends
REFUSED = (5, 6)  # of an agent that was revoked


class PageRunner:
    """The terminals of a reader. folder: where the commands run."""

    def __init__(
        self, start: Start, folder: Path, names: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        """names: word of a page -> its replacement. variables: in addition to SHORT."""
        self._start, self._folder, self._names = start, folder, names
        self._variables = {**SHORT, "ESPALIER_BROKER__PKI": str(folder / "pki"), **variables}
        self._running = list[tuple[str, Running]]()
        self._revoked = False

    def run(self, block: Block) -> None:
        """Run a block, and check its exit codes and what it says that it prints."""
        if block.file:
            (self._folder / block.file).write_text(block.text)
        if block.language == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile(block.text, block.file or "page", "exec"), {"__name__": "page"})
            assert set(PRINTED.findall(block.text)) <= set(printed.getvalue().splitlines())
        elif block.language == "toml":
            file = self._folder / (block.file or "run.toml")
            file.write_text(block.text)
            assert load(file, {}, ()) != load(None, {}, ())
        else:
            lines = [self._replace_names(line) for line in block.lines]
            for own, group in groupby(lines, key=lambda line: line.split()[0] in PROGRAMS):
                for command in group if own else ["\n".join(group)]:
                    self._run_command(command) if own else self._run_in_shell(command)

    def finish(self) -> None:
        """Let agents join a run that waits for some, wait for their end, and end the rest."""
        names = {name for name, _ in self._running}
        if "start" in names and "join" not in names:
            self._run_command(f"edge-agent join --broker {self._names['HOST']}")
        if self._revoked:
            self._wait_for("join", codes=REFUSED)
        else:
            self._wait_for("join", "start")
        for name, process in self._running:
            process.terminate()
            process.communicate(timeout=SECONDS)
            assert process.returncode in ENDED, name

    def _replace_names(self, line: str) -> str:
        words = "|".join(map(re.escape, self._names))
        line = re.sub(r"(?<=[ =])(benchmarks|tests)/", rf"{ROOT}/\1/", line)
        return re.sub(rf"(?<![\w.-])({words})(?![\w.-])", lambda one: self._names[one[0]], line)

    def _run_command(self, line: str) -> None:
        program, *words = shlex.split(line.replace("--token-file -", "--token-file token"), True)
        name = "infer --serve" if "--serve" in words else words[0]
        if name == "export":  # of a run that has ended
            self._wait_for("join", "start")
        for _ in range(2 if name == "join" and "--broker" in words else 1):  # in two terminals
            process = self._start(*PROGRAMS[program], *words, variables=self._variables)
            if name in READY or {"-f", "--follow"} & {*words}:
                self._running.append((name, process))
                eventually(partial(says, process, READY.get(name, "")), SECONDS)
        if (name, process) in self._running:
            return
        out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, line
        if name == "enroll":
            (self._folder / "token").write_text(out)
        if name == "stop":
            self._wait_for("start")
        self._revoked |= name == "revoke"

    def _wait_for(self, *names: str, codes: tuple[int, ...] = (0,)) -> None:
        for name, process in [one for one in self._running if one[0] in names]:
            process.communicate(timeout=SECONDS)
            assert process.returncode in codes, name
            self._running.remove((name, process))

    def _run_in_shell(self, text: str) -> None:
        if text.startswith("eval"):  # it hides the exit code of what it evaluates
            text += "\ncomplete -p coordinator edge-agent"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}:{self._folder}"}
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self._folder, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


def says(process: Running, words: str) -> bool:
    """Return whether a process has printed these words. Fails if it ended without them."""
    logs = (process.out, process.out.with_suffix(".err"))
    ended = process.poll() is not None
    found = any(words in log.read_text() for log in logs)
    assert found or not ended, f"it ended without saying '{words}'"
    return found
