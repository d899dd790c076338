"""Move the weights of rounds through Flower's current deployment: a SuperLink, and SuperNodes that
the caller starts.

`python -m benchmarks.round.flwr_deployment PORT FOLDER ROUNDS AGENTS ENTRIES` starts the SuperLink,
and an app that takes turns of FOLDER.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
POLL = 0.1  # seconds between looks
PROJECT = """
[project]
name = "echo"
version = "1.0.0"
description = "sends weights back"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "benchmark"
components = {{ serverapp = "echo.app:server", clientapp = "echo.app:client" }}
config = {{ rounds = {rounds}, agents = {agents}, entries = {entries}, turns = "{turns}" }}
"""
APP = """
from benchmarks.round.flwr_app import make_client, make_server
client = make_client()
server = make_server()
"""
HOME = '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{}"\ninsecure = true\n'


def main() -> None:
    port, turns, *numbers = sys.argv[1:]
    rounds, agents, entries = map(int, numbers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # ends the SuperLink, too
    bin = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="flower-") as name:
        folder, address = Path(name), f"127.0.0.1:{port}"
        package, home = folder / "app" / "echo", folder / "home"
        package.mkdir(parents=True)
        home.mkdir()
        (package / "__init__.py").touch()
        (package / "app.py").write_text(APP)
        (folder / "app" / "pyproject.toml").write_text(
            PROJECT.format(rounds=rounds, agents=agents, entries=entries, turns=turns)
        )
        (home / "config.toml").write_text(HOME.format(address))
        env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        env["PATH"] = f"{bin}{os.pathsep}{env['PATH']}"  # it starts programs by name
        env["PYTHONPATH"] = str(ROOT)
        serve = [str(bin / "flower-superlink"), "--insecure", "--host", "127.0.0.1"]
        serve += ["--port", port, "--disable-runtime-dependency-installation"]
        with subprocess.Popen(serve, env=env) as superlink:  # noqa: S603
            try:
                wait_for_port(superlink, int(port))
                print("listening", flush=True)
                start = [str(bin / "flwr"), "run", str(folder / "app"), "here"]
                subprocess.run(start, env=env, check=True)  # noqa: S603
                superlink.wait()
            finally:
                superlink.terminate()


def wait_for_port(superlink: subprocess.Popen[bytes], port: int) -> None:
    while superlink.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(POLL)
    sys.exit(f"flower-superlink ended with {superlink.returncode}")


if __name__ == "__main__":
    main()
