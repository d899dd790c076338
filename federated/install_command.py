"""Find how this project was installed, and return the command that adds one of its extras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["NAME", "pip_command"]

NAME = "espalier-fl"  # on the package index, where `espalier` is another project


def pip_command(extra: str = "") -> str:
    """Return the command that installs the distribution with an extra, from where it was installed:
    the index, a wheel, a folder or a repository (PEP 610).
    """
    # loads the standard library's e-mail parser, which few commands need
    from importlib.metadata import distributions

    extras = f"[{extra}]" if extra else ""
    # a build leaves metadata without an origin in the checkout
    found = [one.read_text("direct_url.json") for one in distributions(name=NAME)]
    if not found:  # a checkout that is not installed
        folder = Path(__file__).resolve().parent.parent
        return f"pip install {_constrain(folder)}-e '{folder}{extras}'"
    text = next(filter(None, found), "{}")
    return f"pip install {_requirement(json.loads(text), extras)}"


def _requirement(origin: dict[str, Any], extras: str) -> str:
    """Return the requirement, quoted for a shell. origin: recorded by PEP 610; empty: an index."""
    from urllib.request import url2pathname  # loads HTTP, which few commands need

    url = str(origin.get("url", ""))
    if not url:
        return f"'{NAME}{extras}'"
    if "dir_info" in origin:
        folder = Path(url2pathname(urlsplit(url).path))
        if origin["dir_info"].get("editable"):
            return f"{_constrain(folder)}-e '{folder}{extras}'"
        return f"{_constrain(folder)}'{NAME}{extras} @ {url}'"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"'{NAME}{extras} @ {url}'"


def _constrain(folder: Path) -> str:
    """Return the option for the versions that a clone was tested with, if it lists them."""
    file = folder / "constraints.txt"
    return f"-c '{file}' " if file.is_file() else ""
