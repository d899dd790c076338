"""Turn a text into the name of a file or folder."""

from __future__ import annotations

import os
import re

__all__ = ["make_file_name"]

RESERVED = re.compile(r'[<>:"/\\|?*%]')  # by Windows; `%` marks a replaced character


def make_file_name(text: str) -> str:
    """Return a text without slashes as a file name. Windows reserves more characters: they are
    percent-encoded there.
    """
    if os.name != "nt":
        return text
    return RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", text)
