"""The registry of devices, which several processes open at the same time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from coordinator.access.certificate_registry import REGISTRY, Registry

ADD = """
from contextlib import closing
from pathlib import Path
from coordinator.access.certificate_registry import Registry
with closing(Registry(Path({path!r}))) as registry, registry.transaction():
    registry.set_groups({name!r}, ["eu"])
"""


def test_each_connection_sees_what_another_process_writes(tmp_path: Path) -> None:
    """Also if this process opens the registry a second time, and closes it or not."""
    path = tmp_path / REGISTRY

    def add(name: str) -> None:
        code = ADD.format(path=str(path), name=name)
        subprocess.run([sys.executable, "-c", code], check=True)

    with closing(Registry(path)) as first:
        assert path.stat().st_mode & 0o777 == 0o600
        with closing(Registry(path)) as second:
            add("pi")
            assert second.find_groups("pi") == first.find_groups("pi") == ("eu",)
        add("pad")
        with closing(Registry(path)) as second:
            assert second.find_groups("pad") == first.find_groups("pad") == ("eu",)
        with first.transaction():
            first.set_groups("phone", ["us"])
    with closing(Registry(path)) as last:
        assert last.list_groups() == {"pad": ("eu",), "phone": ("us",), "pi": ("eu",)}
