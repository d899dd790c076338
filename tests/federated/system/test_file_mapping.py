"""How much memory a mapped file takes in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from federated.system.file_mapping import map_file, release_pages

SMAPS = Path("/proc/self/smaps")
SIZE = 4 << 20


def read_resident(path: Path) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    (found,) = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", SMAPS.read_text())
    return 1024 * int(found)


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells which pages are in memory")
def test_released_pages_leave_the_memory_and_are_read_again(tmp_path: Path) -> None:
    path, content = tmp_path / "weights", bytes(range(256)) * (SIZE // 256)
    path.write_bytes(content)
    view = map_file(path)
    assert view == content
    assert read_resident(path) == SIZE
    release_pages(view, SIZE // 2)
    assert read_resident(path) == SIZE // 2
    assert view == content


def test_other_memory_keeps_its_content() -> None:
    content = bytearray(b"x" * SIZE)
    release_pages(memoryview(content), SIZE)
    assert content == b"x" * SIZE
