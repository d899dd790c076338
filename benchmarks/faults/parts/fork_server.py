"""Start Python modules in processes forked from a server that has imported PyTorch, which saves the
seconds that coordinators, agents and their training processes need to import it.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

__all__ = ["ForkedProcess", "ServedProcess", "ServedTraining"]

# nearly all that coordinators, agents and training processes import
PRELOADED = (
    "coordinator.run.launch",
    "coordinator.cli.start",
    "edge_agent.cli.join",
    "edge_agent.join.participation",
    "edge_agent.join.training_process",
    "federated.device.trainers.pytorch_trainer",
)

# seconds of a window in which an agent times its training steps: a tenth of the usual, because
# these fleets check what agents do, and not how fast they are
WINDOW = 0.03


class ServedProcess:
    """Process that the server forked, with the interface of `subprocess.Popen`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        """Start a process that calls a function."""
        context = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        # of the server and all that it forks; `edge_agent.join.training_process_control` says why
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self._process = context.Process(target=function, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; negative after a signal, and None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code. Raises
        subprocess.TimeoutExpired.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcess(ServedProcess):
    """Process that runs `python -m MODULE ARGUMENTS...`.

    out, errors: files that its output is appended to.
    folder: its working directory; None: that of this process.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        out: Path,
        errors: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.out = out
        for file in (out, errors):
            file.touch()
        super().__init__(
            run_module, module, list(arguments), out, errors, dict(environment), folder
        )

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for the end of the process, and return its output."""
        self.wait(timeout)
        return self.out.read_text(), None


def run_module(
    module: str,
    arguments: list[str],
    out: Path,
    errors: Path,
    environment: Mapping[str, str],
    folder: Path | None,
) -> None:
    """Run a module as `python -m` does, with its output appended to files."""
    # A simulation in the same process may have started the server, with ctrl-C blocked; a shell
    # that starts a command in the background lets it ignore ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for stream, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, out, append),
        (2, errors, append),
    ):
        file = os.open(path, flags, 0o666)
        os.dup2(file, stream)
        os.close(file)
    # the streams of the server may have other buffering and encodings
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    tempfile.tempdir = None  # TMPDIR of the given environment counts
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, *arguments]
    if module == "edge_agent.cli":
        from edge_agent.device import profiling
        from edge_agent.join import training_process_control

        vars(profiling)["WINDOW"] = WINDOW
        replaced = {**vars(subprocess), "Popen": ForkedTraining}
        vars(training_process_control)["subprocess"] = SimpleNamespace(**replaced)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ServedTraining(ServedProcess):
    """Training process, forked by the server, with the part of the interface of `subprocess.Popen`
    that `edge_agent.join.training_process_control` uses.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], **options: object
    ) -> None:
        (questions, ask), (answers, answer) = Pipe(duplex=False), Pipe(duplex=False)
        with questions, ask, answers, answer:
            super().__init__(serve_training, questions, answer, dict(env))
            self.stdin = os.fdopen(os.dup(ask.fileno()), "wb", buffering=0)
            self.stdout = os.fdopen(os.dup(answers.fileno()), "rb", buffering=0)


def serve_training(
    questions: Connection, answers: Connection, environment: Mapping[str, str]
) -> NoReturn:
    run_training(questions.fileno(), answers.fileno(), environment)


class ForkedTraining:
    """Training process like `ServedTraining`, forked from its agent."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], **options: object
    ) -> None:
        self.returncode: int | None = None
        (questions, ask), (answers, answer) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            run_training(questions, answer, env)
        os.close(questions)
        os.close(answer)
        self.stdin = os.fdopen(ask, "wb", buffering=0)
        self.stdout = os.fdopen(answers, "rb", buffering=0)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code. Raises
        subprocess.TimeoutExpired.
        """
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("training process", timeout or 0.0)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def run_training(questions: int, answers: int, environment: Mapping[str, str]) -> NoReturn:
    """Become a training process with these pipes, as a new program would, and exit."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(questions, 0)
        os.dup2(answers, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        logging.getLogger().handlers.clear()
        sys.argv = ["training_process"]
        from edge_agent.join import training_process

        training_process.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
