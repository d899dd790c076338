"""Check a machine for `edge-agent doctor` and `coordinator doctor`: installation, disk, runtimes,
clock. Does not import torch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from federated.install_command import pip_command
from federated.wire.checks.check_result import Check

__all__ = ["check_clock", "check_disk", "check_namesake", "check_runtime"]

# copies of the largest submodel on disk: its weights, an update, and an update in transfer
COPIES = 3
# bytes of disk below which there is a warning and a failure, if no run states its needs
DISK = 500e6, 50e6
NAMESAKE = "espalier"  # on the package index: a phylogenetics tool
TIMEOUT = 120.0  # seconds to load a runtime
# an ONNX model of one operation: the product of a 2x2 matrix with itself
MODEL = (
    "08083A400A110A01780A017812017922064D61744D756C1201675A130A0178120E0A0C080112080A0208020A"
    "02080262130A0179120E0A0C080112080A0208020A0208024202100D"
)
TRIAL = {
    "onnx": "import onnx; print(onnx.__version__)",
    "onnxruntime": f"import numpy as n, onnxruntime as o; x = n.ones((2, 2), n.float32); "
    f"s = o.InferenceSession(bytes.fromhex('{MODEL}'), providers=['CPUExecutionProvider']); "
    "assert (s.run(None, {'x': x})[0] == 2).all(), 'computes a wrong product'; "
    "print(o.__version__, ' '.join(o.get_available_providers()), sep=', ')",
    "torch": "import torch; torch.ones(8, 8) @ torch.ones(8, 8); print(torch.__version__, "
    "f'{torch.get_num_threads()} threads', sep=', ')",
}


def check_namesake() -> Iterator[Check]:
    """Warn if the distribution is installed that has this project's name on the package index."""
    with suppress(PackageNotFoundError):
        yield Check(
            "installation",
            "warn",
            f"'{NAMESAKE}' {version(NAMESAKE)} is installed: another project, or an old version of "
            "this one",
            f"pip uninstall {NAMESAKE}, then {pip_command()}",
        )


def check_disk(store: Path, flag: str, largest: int | None = None) -> Check:
    """Check that a folder is writable and has room.

    flag: that sets another folder.
    largest: bytes of the largest submodel, if known.
    """
    folder = next(path for path in (store, *store.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        return Check(
            "disk",
            "fail",
            f"{folder} is not writable ({error.strerror})",
            f"give this user write access, or set another folder with {flag}",
            7,
        )
    free = shutil.disk_usage(folder).free
    found, (enough, least) = f"{free / 1e9:.3g} GB free in {folder}", DISK
    if largest is not None:
        enough = least = COPIES * largest
        found += f"; {COPIES} copies of the largest submodel take {least / 1e6:.3g} MB"
    if free < least:
        return Check(
            "disk",
            "fail",
            found,
            f"free disk space, or set a folder on another disk with {flag}",
            7,
        )
    if free < enough:
        return Check("disk", "warn", found, "free disk space for weights and updates")
    return Check("disk", "ok", found)


def check_runtime(package: str, absent: Check) -> Check:
    """Load a package in a separate process, which crashes if the package was built for another
    processor. absent: the result if it is not installed.
    """
    try:
        process = subprocess.run(  # noqa: S603
            [sys.executable, "-c", TRIAL[package]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(
            package,
            "fail",
            f"did not load within {TIMEOUT:.0f} s",
            "this machine is too busy, or its disk too slow",
            4,
        )
    if process.returncode == 0:
        return Check(package, "ok", process.stdout.strip())
    errors = process.stderr.strip()
    if "ModuleNotFoundError" in errors and f"'{package}'" in errors:
        return absent
    if process.returncode < 0:
        return Check(
            package,
            "fail",
            f"crashed with signal {-process.returncode}",
            f"the package was built for another processor: install another build of {package}",
            4,
        )
    return Check(
        package,
        "fail",
        errors.splitlines()[-1] if errors else "fails to load",
        f"reinstall {package}",
        4,
    )


def check_clock() -> Check:
    """Check that the clock is not earlier than the installation of this program."""
    now, installed = time.time(), Path(__file__).stat().st_mtime
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86400:
        return Check(
            "clock",
            "fail",
            f"{found}, before this program was installed",
            "set the clock: timedatectl set-ntp true; a Raspberry Pi loses the time without power",
            3,
        )
    return Check("clock", "ok", found)
