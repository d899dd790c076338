"""`python -m benchmarks.attacks.killed_command SEED RUNS RUN BROKER export|release FOLDER`: kill a
command of the coordinator (kill -9) at random moments, repeat it to the end, and check the files
that it left.

The commands run in copies (fork) of this process, which has imported what they need, so that the
kill hits their work and not their imports.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coordinator.cli import main as cli
from coordinator.release import export_run, rollout
from coordinator.release.archive import Archive
from coordinator.release.history import list_kept
from coordinator.store.run_store import Store
from export import release_reader
from federated.errors import StoreError

__all__ = ["main"]

PRELOADED = export_run, rollout
SHORTEST, LONGEST = 0.02, 1.5  # seconds until a command is killed
KILLS = 2
TRIES = 5  # of the command to finish: the broker may be away
PATIENCE = 120.0  # seconds for the first round to be stored


def run_command(arguments: Sequence[str], seconds: float | None) -> int:
    """Run a command in a copy of this process. Return its exit code.

    seconds: until it is killed; None lets it finish
    """
    child = os.fork()
    if child == 0:
        sys.argv = ["coordinator", *arguments]
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            sys.stdout.flush()
            os._exit(code)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for_round(runs: Path, run: str) -> None:
    """Wait until the run has stored a round."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with closing(Store.open(runs, run, read_only=True)) as store:
                if store.read_history():
                    return
        except StoreError:  # not created yet
            pass
        time.sleep(0.05)
    sys.exit(f"run '{run}' stored no round within {PATIENCE:.0f} s")


def check_release(folder: Path) -> None:
    """Check a release that a killed command left. Raises ExportError if it is incomplete."""
    if (folder / release_reader.MANIFEST).exists():
        release_reader.read(folder)


def check_archive(archive: Archive) -> None:
    """Check that the history names only complete releases. Raises StoreError, ExportError."""
    for version in list_kept(archive.read()):
        release_reader.read(archive.check(version))


def main(arguments: Sequence[str]) -> None:
    seed, runs, run, broker, what, out = arguments
    rng, folder = random.Random(int(seed)), Path(out)  # noqa: S311  # repeatable, not secret
    export = ["export", run, "--runs", runs, "--no-int8", "--out", out]
    release = ["release", run, "--runs", runs, "--broker", broker, "--bundle", out]
    wait_for_round(Path(runs), run)
    if what == "release" and (code := run_command(export, None)):
        sys.exit(f"export failed with exit code {code}")
    command = export if what == "export" else release
    archive = Archive(Path(runs), run)
    for _ in range(KILLS):
        run_command(command, rng.uniform(SHORTEST, LONGEST))
        check_release(folder)
        check_archive(archive)
    for _ in range(TRIES):
        if not (code := run_command(command, None)):
            break
        time.sleep(1.0)
    if code:
        sys.exit(f"after it was killed, {what} failed with exit code {code}")
    release_reader.read(folder)
    check_archive(archive)
    if what == "release" and not list_kept(archive.read()):
        sys.exit("nothing was released")


if __name__ == "__main__":
    main(sys.argv[1:])
