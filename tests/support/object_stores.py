"""Run an S3-compatible store that checks signatures (SeaweedFS), and a way to it that fails when a
test says so.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.broker.local_addresses import find_free_port
from tests.support.waiting import eventually

__all__ = [
    "BUCKET",
    "CREDENTIALS",
    "SECRET",
    "StoreServer",
    "Way",
    "list_objects",
    "needs_store",
    "run_store",
]

HOST, BUCKET = "127.0.0.1", "fleet"
SECRET = "a-secret-of-the-tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "ACCESSOFTHETESTS",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
AWAY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def find_weed() -> str | None:
    """Return the program of SeaweedFS, which may be beside Python."""
    beside = shutil.which("weed", path=str(Path(sys.executable).parent))
    return beside or shutil.which("weed")


needs_store = pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed")


@dataclass(frozen=True)
class StoreServer:
    """A running store with an empty bucket."""

    endpoint: str


@contextmanager
def run_store(folder: Path) -> Iterator[StoreServer]:
    """Run a store in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("s3", "master", "volume", "filer")
    ports = {name: str(find_free_port(HOST, 0)) for name in (*names, *(f"{n}.g" for n in names))}
    (folder / "identities.json").write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "tests",
                        "credentials": [
                            {
                                "accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                                "secretKey": SECRET,
                            }
                        ],
                        "actions": ["Admin"],
                    }
                ]
            }
        )
    )
    options = [f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3"]
    for name in names:
        options += [f"-{name}.port={ports[name]}", f"-{name}.port.grpc={ports[f'{name}.g']}"]
    options += [f"-s3.config={folder / 'identities.json'}", "-master.volumeSizeLimitMB=64"]
    options += ["-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    options += ["-master.telemetry=false"]
    weed = find_weed()
    assert weed is not None
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen([weed, "server", *options], stdout=out, stderr=out, cwd=folder)
    try:
        made = StoreServer(f"http://{HOST}:{ports['s3']}")
        eventually(lambda: make_bucket(made) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield made
    finally:
        process.kill()
        process.wait(60)


def make_client(server: StoreServer) -> Any:
    import botocore.config
    import botocore.session

    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=SECRET,
        config=botocore.config.Config(
            s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
        ),
    )


def make_bucket(server: StoreServer) -> bool:
    """Create the bucket, and return whether the store works."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = make_client(server)
        client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="first", Body=b"1")
        client.delete_object(Bucket=BUCKET, Key="first")
    except (BotoCoreError, ClientError):
        return False
    return True


def list_objects(server: StoreServer) -> list[str]:
    """Return the keys of all objects in the bucket."""
    found = make_client(server).list_objects_v2(Bucket=BUCKET)
    return [one["Key"] for one in found.get("Contents", ())]


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
            with socket.create_connection((host, int(port))) as upstream:
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
                    eventually(lambda: not self.holding, 600)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
