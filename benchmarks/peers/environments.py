"""Make the virtual environments of the compared projects (peers), once per user. They share the
packages of this environment, such as torch, and hold only what a peer needs in other versions.
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

__all__ = ["PEERS", "choose_peers", "find_installed", "list_versions", "set_up"]

PEERS: Mapping[str, str] = {
    "flwr": "flwr==1.42.0",
    "nvflare": "nvflare==2.9.0",
    "pfl": "pfl==0.6.0",
    "ray": "flwr[simulation]==1.42.0",
}
"""What to install for each peer. `ray`: Flower, whose simulation runs on Ray."""


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


def find_installed(peers: Iterable[str], say: Say) -> tuple[str, ...]:
    """Return the peers that are installed or could be installed now, and say which could not."""
    found = []
    for peer in peers:
        try:
            set_up(peer)
            found.append(peer)
        except ConfigError as error:
            say(f"not compared with {peer}: {error}")
    return tuple(found)


def folder() -> Path:
    """Return the folder of all environments, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "espalier" / "peers"


def set_up(peer: str) -> Path:
    """Return the Python of a peer's environment, and make it on the first call. Raises ConfigError
    if it cannot be installed.
    """
    home = folder() / PEERS[peer].replace("==", "-")
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        packages = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        try:
            subprocess.run([sys.executable, "-m", "venv", home], check=True)  # noqa: S603
            (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
            install = [python, "-m", "pip", "install", "--quiet", PEERS[peer]]
            subprocess.run([str(word) for word in install], check=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"cannot install the peer {peer} into {home}: {error}") from error
        done.touch()
    return python
