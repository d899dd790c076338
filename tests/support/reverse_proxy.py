"""Run nginx in front of the phones' page, as docs/phones.md describes it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.brokers import is_listening
from tests.support.page_blocks import ROOT, list_blocks
from tests.support.waiting import eventually

__all__ = ["PREFIX", "needs_nginx", "run_proxy"]

PREFIX, UPSTREAM = "/fleet", "127.0.0.1:8601"  # in the documentation
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


@contextmanager
def run_proxy(folder: Path, address: str, page: str, certificate: Path) -> Iterator[None]:
    """Run nginx at an address, HOST:PORT, in front of another one. certificate: with its key."""
    (block,) = (one for one in list_blocks(ROOT / "docs/phones.md") if one.language == "nginx")
    assert UPSTREAM in block.text
    folder.mkdir()
    temporary = (f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi"))
    (folder / "nginx.conf").write_text(f"""
        daemon off;
        master_process off;
        pid {folder}/pid;
        events {{}}
        http {{
            access_log {folder}/access.log;
            {" ".join(temporary)}
            uwsgi_temp_path {folder};
            scgi_temp_path {folder};
            server {{
                listen {address} ssl;
                ssl_certificate {certificate};
                ssl_certificate_key {certificate};
                {block.text.replace(UPSTREAM, page)}
            }}
        }}
    """)
    errors = folder / "error.log"
    command = ["nginx", "-e", str(errors), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command)
    try:
        eventually(lambda: is_listening(address) or process.poll() is not None)
        assert process.poll() is None, errors.read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)
