"""Pictures and videos of digits, for the phones' page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["make_picture", "name_class", "write_video"]

WIDTH, HEIGHT = 640, 480  # of a video


def draw(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the grey values of a digit, 0 to 255. x: [1, 8, 8], 0 to 16."""
    return (x[0].astype(int) * 255 // 16).astype(np.uint8)


def make_picture(x: NDArray[Any], name: str) -> dict[str, Any]:
    """Return a digit as a file for Playwright."""
    file = io.BytesIO()
    Image.fromarray(draw(x)).save(file, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}


def name_class(page: Any, x: NDArray[Any], name: str) -> int | None:
    """Return the class that a page names for a digit; None before it has tested its network. name:
    of the digit's file, different each time.
    """
    page.get_by_label("Picture to try").set_input_files([make_picture(x, name)])
    answer = page.get_by_text(re.compile(rf"^{name}: class \d+ \(|not tested"))
    answer.wait_for(timeout=60_000)
    found = re.search(r"class (\d+)", answer.inner_text())
    return int(found[1]) if found else None


def write_video(path: Path, x: NDArray[Any]) -> Path:
    """Write a video of one picture, a digit in the middle, as YUV4MPEG2."""
    side = HEIGHT // x.shape[1]
    digit = draw(x).repeat(side, 0).repeat(side, 1)
    grey = np.zeros((HEIGHT, WIDTH), np.uint8)
    left = (WIDTH - digit.shape[1]) // 2
    grey[: digit.shape[0], left : left + digit.shape[1]] = digit
    colours = np.full(HEIGHT * WIDTH // 2, 128, np.uint8)
    frame = b"FRAME\n" + grey.tobytes() + colours.tobytes()
    path.write_bytes(f"YUV4MPEG2 W{WIDTH} H{HEIGHT} F10:1 Ip A1:1 C420jpeg\n".encode() + 2 * frame)
    return path
