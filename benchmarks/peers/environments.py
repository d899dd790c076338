"""Make the virtual environments of the compared projects (peers), once per user. They share the
packages of this environment, such as torch, and hold only what a peer needs in other versions. An
environment of this project without extras shares nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from federated.errors import ConfigError
from federated.runtime.console import Say

__all__ = [
    "PEERS",
    "choose_peers",
    "find_installed",
    "install_without_extras",
    "list_versions",
    "set_up",
]

ROOT = Path(__file__).parents[2]

PEERS: Mapping[str, str] = {
    "fedml": "fedml==0.9.6",
    "flwr": "flwr==1.42.0",
    "nvflare": "nvflare==2.9.0",
    "pfl": "pfl==0.6.0",
    "flwr-ray": "flwr[simulation]==1.42.0",
}
"""What to install for each peer. `flwr-ray`: Flower with its simulation, which runs on Ray."""


def choose_peers(names: Sequence[str]) -> Callable[[Any], Any]:
    """Return the option `--peer` of a benchmark that knows these peers."""
    return click.option(
        "--peer",
        "peers",
        multiple=True,
        type=click.Choice([*names, "none"]),
        default=tuple(names),
        callback=lambda context, option, chosen: tuple(name for name in chosen if name in names),
        help="other project to compare with, or none; may be repeated  [default: all]",
    )


def list_versions(peers: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages of these peers."""
    return dict(PEERS[peer].split("==", 1) for peer in peers)


def find_installed(peers: Iterable[str], say: Say) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the peers that are installed or could be installed now, and why each other one could
    not. Say which could not.
    """
    found, absent = list[str](), dict[str, str]()
    for peer in peers:
        try:
            set_up(peer)
            found.append(peer)
        except ConfigError as error:
            absent[peer] = str(error)
            say(f"not compared with {peer}: {error}")
    return tuple(found), absent


def folder() -> Path:
    """Return the folder of all environments, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "espalier" / "peers"


def set_up(peer: str) -> Path:
    """Return the Python of a peer's environment, and make it on the first call. Raises ConfigError
    if it cannot be installed.
    """
    home = folder() / PEERS[peer].replace("==", "-")
    done = home / "installed"
    if not done.exists():
        create(home, f"the peer {peer}", [PEERS[peer]], shared=True)
        done.touch()
    return find_python(home)


def install_without_extras(home: Path) -> Path:
    """Install this checkout without extras, so without PyTorch, into a new environment, and return
    its Python. Raises ConfigError, also if this Python imports PyTorch.
    """
    wanted = ["-c", str(ROOT / "constraints.txt"), "-e", str(ROOT)]
    create(home, "this project", wanted, shared=False)
    python = find_python(home)
    tried = subprocess.run([python, "-c", "import torch"], capture_output=True)  # noqa: S603
    if tried.returncode == 0:
        raise ConfigError(f"{python} imports PyTorch: remove its folder from PYTHONPATH")
    return python


def create(home: Path, title: str, wanted: Sequence[str], *, shared: bool) -> None:
    """Create an environment and install packages into it.

    title: of what is installed. wanted: arguments of `pip install`. shared: also find the packages
    of this environment. Raises ConfigError, whose reason names no folder of this machine.
    """
    packages = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    try:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)  # noqa: S603
        if shared:
            (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [str(find_python(home)), "-m", "pip", "install", "--quiet", *wanted]
        subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(getattr(error, "stderr", None) or "")
        raise ConfigError(f"cannot install {title}: {explain(error)}") from error


def explain(error: OSError | subprocess.CalledProcessError) -> str:
    """Return why an environment could not be made: pip's last error, without its label."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    told = [line for line in (error.stderr or "").splitlines() if line.startswith("ERROR: ")]
    return told[-1].removeprefix("ERROR: ") if told else f"exit code {error.returncode}"


def find_python(home: Path) -> Path:
    return home / "bin" / "python"
