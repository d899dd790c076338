"""Serve a run's weights and take its updates over HTTP(S) (Starlette and uvicorn, the extra
`serve`).

GET  /weights/SHA256      weights or a training graph; with ranges
HEAD /updates/...         how much of an update is there, in the header Upload-Offset
PUT  /updates/...         append to an update; Content-Range says which of its bytes follow

The addresses of updates are signed (see `transfer_urls`). Pages of any site may use an address that
they know (CORS), as that of the phones does. The coordinator makes the file of an update when it
expects it, and removes it when it does not any more: the server makes none.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
import ssl
from io import FileIO
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from coordinator.http_transfers.transfer_urls import UPDATES, WEIGHTS, sign
from federated.errors import describe_os_error
from federated.http_transfers.http_upload import OFFSET
from federated.runtime.web_server import Limits, WebServer

__all__ = ["TransferServer"]

CONNECTIONS = 1024
IDLE = 30.0  # seconds without a request
# seconds of a connection: while it is open, files that the coordinator removed keep their room on
# the disk. Agents go on over another one
LIFETIME = 600.0
STALL_TIMEOUT = 30.0  # seconds without a byte of an update
FAREWELL = 3.0
UNEXPECTED = "this update is not expected any more"
HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
}


class TransferServer(WebServer):
    """Serves the folder of a run's transfers until closed."""

    def __init__(
        self,
        spool: Path,
        secret: bytes,
        address: tuple[str, int] | socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """spool: folder of the weights and the updates. secret: see `TransferUrls`. Raises OSError
        if the port cannot be bound.
        """
        limits = Limits(CONNECTIONS, FAREWELL, idle=IDLE, lifetime=LIFETIME)
        super().__init__(make_application(spool, secret), address, limits, tls=tls)


def make_application(spool: Path, secret: bytes) -> Starlette:
    """Make the application. spool, secret: see `TransferServer`."""
    busy = set[Path]()  # updates that a request appends to

    async def send_weights(request: Request) -> Response:
        sha256 = request.path_params["sha256"]
        path = spool / f"{sha256}.weights"
        if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not path.is_file():
            raise HTTPException(404, "these weights are not needed any more")
        return FileResponse(path, headers=HEADERS, media_type="application/octet-stream")

    async def tell_offset(request: Request) -> Response:
        path, _ = find_update(request, spool, secret)
        return Response(status_code=204, headers={OFFSET: str(measure(path))})

    async def append(request: Request) -> Response:
        path, size = find_update(request, spool, secret)
        if path in busy:
            raise HTTPException(409, "another request sends this update", {"Retry-After": "1"})
        busy.add(path)
        try:
            start, end = read_range(request, size)
            if (there := measure(path)) != start:
                raise HTTPException(
                    409, f"expected bytes from {there}, found from {start}", {OFFSET: str(there)}
                )
            with open_update(path) as file:
                file.seek(start)
                await take_body(request, file, end - start)
        except OSError as error:
            raise HTTPException(507, describe_os_error(error)) from error
        finally:
            busy.discard(path)
        return Response(status_code=204, headers={OFFSET: str(end)})

    return Starlette(
        routes=[
            Route(f"{WEIGHTS}/{{sha256}}", send_weights, methods=["GET"]),
            Route(f"{UPDATES}/{{path:path}}", tell_offset, methods=["HEAD"]),
            Route(f"{UPDATES}/{{path:path}}", append, methods=["PUT"]),
        ],
        exception_handlers={HTTPException: explain},
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=["*"],
                allow_methods=["GET", "HEAD", "PUT"],
                allow_headers=["Content-Range", "Range"],
                expose_headers=[OFFSET],
                max_age=86_400,
            )
        ],
    )


async def take_body(request: Request, file: FileIO, expected: int) -> None:
    """Append the body of a request, which has `expected` bytes, to a file. Raises HTTPException,
    OSError.
    """
    taken, parts = 0, request.stream().__aiter__()
    try:
        while True:
            with anyio.fail_after(STALL_TIMEOUT):
                part = await anext(parts, None)
            if part is None:
                break
            taken += len(part)
            if taken > expected:
                raise HTTPException(413, f"expected {expected} bytes, found more")
            if not os.fstat(file.fileno()).st_nlink:  # removed, but it would still fill the disk
                raise HTTPException(404, UNEXPECTED)
            await anyio.to_thread.run_sync(write_all, file, part)
    except TimeoutError as error:
        raise HTTPException(408, f"no byte came for {STALL_TIMEOUT:.0f} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client disconnected") from error
    if taken < expected:
        raise HTTPException(400, f"expected {expected} bytes, found {taken}")


def find_update(request: Request, spool: Path, secret: bytes) -> tuple[Path, int]:
    """Return the file of an update, and the size of the whole update. Raises HTTPException for an
    address that this coordinator did not give out, or that is not valid any more.
    """
    name, size = request.path_params["path"], request.query_params.get("size", "")
    key = request.query_params.get("key", "")
    valid = re.fullmatch(r"[1-9]\d{0,17}", size) and key.isascii()
    if not valid or not hmac.compare_digest(sign(secret, name, int(size)), key):
        raise HTTPException(403, "this address was not given out by the running coordinator")
    path = spool / name
    measure(path)
    return path, int(size)


def measure(path: Path) -> int:
    """Return how many bytes of an update arrived. Raises HTTPException if it is not expected."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise HTTPException(404, UNEXPECTED) from error


def open_update(path: Path) -> FileIO:
    """Open an update without making its file. Raises HTTPException if it is not expected."""
    try:
        return FileIO(path, "r+")
    except FileNotFoundError as error:
        raise HTTPException(404, UNEXPECTED) from error


def read_range(request: Request, size: int) -> tuple[int, int]:
    """Return the offset of the first byte that follows, and the one after the last. Raises
    HTTPException.
    """
    text = request.headers.get("content-range", f"bytes 0-{size - 1}/{size}")
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", text)
    if found is None:
        raise HTTPException(400, f"expected Content-Range: bytes A-B/{size}, found {text[:80]!r}")
    start, last, total = map(int, found.groups())
    if total != size or not start <= last < size:
        raise HTTPException(413, f"expected a range of {size} bytes, found {text}")
    return start, last + 1


def write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view := view[file.write(view) :]:
        pass


async def explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    return PlainTextResponse(error.detail, error.status_code, headers)
