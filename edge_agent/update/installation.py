"""Install a wheel into a new environment, which starts as a copy of the current one.

The copy consists of hard links where the file system has them, so it takes little room and time. It
keeps the packages that this device has, such as a PyTorch built for its board, and a device
without a network needs nothing but the wheel. The wheel is installed only if it has the digest that
the operator gave. pip takes packages from an index only with digests, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edge_agent.update.environments import MARK, STAGED
from federated.errors import ConfigError, LinkError, StoreError, UsageError, explain_os_errors
from federated.install_command import NAME
from federated.runtime import atomic_files
from federated.runtime.console import Say

__all__ = ["StagedWheel", "build_environment", "clean_variables", "stage_wheel"]

FILE = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?(-[^-]+){3}\.whl")
VERSION = re.compile(r"\d[0-9A-Za-z.+!]*")
ROOM = 16 << 20  # bytes to keep free beyond the content of the wheel
PIP = ("-I", "-m", "pip", "--disable-pip-version-check", "--no-input")
TIMEOUT = 3600.0  # seconds for pip, which may download packages over a slow line
# of Python, and of the environment that the command was started from
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


@dataclass(frozen=True)
class StagedWheel:
    """A wheel with the expected digest, in a folder of the update's own.

    path: its file.
    version: of the program in it.
    sha256: its digest, hexadecimal.
    """

    path: Path
    version: str
    sha256: str

    @property
    def folder_name(self) -> str:
        """Name of the environment that it is installed in."""
        return f"{self.version}-{self.sha256[:8]}"


def stage_wheel(source: str, sha256: str, root: Path, index: str | None = None) -> StagedWheel:
    """Copy or download a wheel into the folder of the environments, and check its digest.

    source: a file, or a version on the package index.
    index: address of the index, if not pip's default.
    Raises UsageError, ConfigError, LinkError, StoreError.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise UsageError(
            f"--sha256: expected 64 hexadecimal digits, found {sha256[:80]!r}: run "
            "sha256sum FILE where the wheel was built"
        )
    folder = root / STAGED
    with explain_os_errors(StoreError, f"cannot write to {folder}"):
        folder.mkdir(mode=0o700)
    if source.endswith(".whl"):
        path = _copy(Path(source), folder)
    elif VERSION.fullmatch(source):
        path = _download(source, sha256, folder, index)
    else:
        raise UsageError(f"expected a wheel (FILE.whl) or a version such as 0.3.0, found {source}")
    named = FILE.fullmatch(path.name)
    if named is None or named["name"].lower().replace("_", "-") != NAME:
        raise ConfigError(f"{source}: expected a wheel of {NAME}, found {path.name}")
    if (found := atomic_files.sha256(path)) != sha256:
        raise ConfigError(
            f"{source}: expected sha256 {sha256}, found {found}: the file is damaged or another "
            "one; nothing was installed"
        )
    return StagedWheel(path, named["version"], sha256)


def _copy(source: Path, folder: Path) -> Path:
    with explain_os_errors(ConfigError, f"cannot read {source}"):
        size = source.stat().st_size
    check_room(folder, size)
    with explain_os_errors(StoreError, f"cannot copy {source} to {folder}"):
        return Path(shutil.copyfile(source, folder / source.name))


def _download(version: str, sha256: str, folder: Path, index: str | None) -> Path:
    """Download the wheel of a version, whose digest pip compares."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{NAME}=={version} --hash=sha256:{sha256}\n")
    # not as an argument, which other users can see: it may contain a password
    where = {"PIP_INDEX_URL": index} if index else {}
    words = ["download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    try:
        run_pip(Path(sys.executable), *words, "-d", str(folder), "-r", str(wanted), variables=where)
    except ConfigError as error:
        raise LinkError(
            f"cannot download {NAME} {version}: {error}; check the version, its sha256 and the "
            "network, or name a wheel's file"
        ) from None
    return next(folder.glob("*.whl"))


def build_environment(
    wheel: StagedWheel, new: Path, base: Path, requirements: Path | None, say: Say
) -> None:
    """Copy an environment, and install a wheel into the copy.

    requirements: file of further packages with digests, in pip's form.
    Raises ConfigError, StoreError. The caller removes what is there then.
    """
    with explain_os_errors(ConfigError, f"{base} is not a Python environment"):
        settings = (base / "pyvenv.cfg").read_text()
    with explain_os_errors(StoreError, f"cannot write {new}"):
        check_room(new.parent, sum(one.file_size for one in list_files(wheel.path)))
        for folder in (base, new):
            folder.mkdir(exist_ok=True)
            (folder / MARK).touch()
        inherits = "include-system-site-packages = true" in settings
        venv.EnvBuilder(system_site_packages=inherits, symlinks=os.name != "nt").create(new)
        copied = copy_packages(base, new)
    say(f"copied {copied} files of {base.name}")
    python = locate(new, "python")
    run_pip(python, "uninstall", "--yes", NAME)
    if requirements is not None:
        words = ["--require-hashes", "--only-binary", ":all:", "-r", str(requirements)]
        run_pip(python, "install", *words)
    try:
        run_pip(python, "install", "--no-index", str(wheel.path))
    except ConfigError as error:
        raise ConfigError(
            f"cannot install {wheel.path.name}: {error}; packages that it needs and this device "
            "lacks can be named with --requirements"
        ) from None


def list_files(wheel: Path) -> list[zipfile.ZipInfo]:
    """Return the files in a wheel. Raises ConfigError if it is none."""
    what = f"{wheel.name} is no wheel"
    with explain_os_errors(ConfigError, what, zipfile.BadZipFile), zipfile.ZipFile(wheel) as file:
        return file.infolist()


def check_room(folder: Path, size: int) -> None:
    """Raise StoreError if a disk has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < size + ROOM:
        raise StoreError(
            f"{folder}: {(size + ROOM) / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free: "
            "free disk space"
        )


def copy_packages(base: Path, new: Path) -> int:
    """Copy the installed packages of an environment by hard links, or else by their content. Return
    the number of files. Raises OSError.
    """
    count = 0

    def copy(source: str, target: str) -> None:
        nonlocal count
        count += 1
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links, or a file of another user
            shutil.copy2(source, target)

    for source, target in {locate_packages(base): locate_packages(new)}.items():
        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)
    return count


def locate_packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    where = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", where))


def locate(environment: Path, command: str) -> Path:
    """Return a command of an environment."""
    where = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("scripts", "venv", where)) / command


def clean_variables() -> dict[str, str]:
    """Return the environment variables without those that name another Python's packages."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def run_pip(python: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run an environment's pip. variables: of the process, in addition. Raises ConfigError with its
    errors.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [python, *PIP, *words],
            capture_output=True,
            text=True,
            env={**clean_variables(), **variables},
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"pip did not end within {TIMEOUT:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
        if any("No module named pip" in line for line in lines):
            errors = [f"{python.parent.parent} has no pip: {python} -m ensurepip"]
        raise ConfigError("; ".join(errors or lines[-1:])[:600] or f"exit code {done.returncode}")
