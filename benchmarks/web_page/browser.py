"""Open the web page in Chromium, driven by Playwright."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from federated.errors import ConfigError

__all__ = ["LONGEST_WAIT", "find_chromium", "open_chromium", "sign_in"]

PROGRAMS = ("chromium", "chromium-browser")
# milliseconds until a page shows something; a busy machine takes minutes, Playwright waits for 30 s
LONGEST_WAIT = 200_000


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def open_chromium(*flags: str, home: Path | None = None) -> Iterator[Any]:
    """Start Chromium without a window; yield Playwright's browser. home: with the certificates that
    it trusts; None: the user's. Raises ConfigError if Chromium or Playwright is not installed.
    """
    try:
        api: Any = importlib.import_module("playwright.sync_api")
    except ImportError as error:
        raise ConfigError("Playwright is not installed: run `make web`") from error
    if (program := find_chromium()) is None:
        raise ConfigError(f"found none of {', '.join(PROGRAMS)}: install Chromium")
    options = ["--no-sandbox", "--disable-gpu", *flags]
    env = None if home is None else {**os.environ, "HOME": str(home)}
    with (
        api.sync_playwright() as playwright,
        closing(
            playwright.chromium.launch(executable_path=program, args=options, env=env)
        ) as browser,
    ):
        yield browser


def sign_in(page: Any, url: str, token: str) -> None:
    """Open the list of runs or a view of one, and sign in if the page asks for the token. url: with
    the view.
    """
    page.set_default_timeout(LONGEST_WAIT)
    page.goto(url)
    views = page.get_by_role("navigation", name="Views").or_(
        page.get_by_role("region", name="Runs")
    )
    field = page.get_by_label("Token")
    views.or_(field).first.wait_for()
    if field.is_visible():
        field.fill(token)
        page.get_by_role("button", name="Sign in").click()
        views.wait_for()
