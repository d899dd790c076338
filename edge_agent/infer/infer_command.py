"""`edge-agent infer`: run a released network on some inputs once, or serve it over HTTP or MQTT
until stopped. Does not import torch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edge_agent.infer.answer_conversion import format_answer
from edge_agent.infer.engine import Engine
from edge_agent.infer.graph_choice import format_trials
from edge_agent.infer.infer_options import InferRequest
from edge_agent.infer.inputs import list_inputs, read_examples
from edge_agent.infer.requests_and_replies import describe_choice
from federated.errors import ConfigError, UsageError, describe_os_error, require_extra
from federated.runtime.console import Say, show_progress
from federated.runtime.listen_address import parse_listen_address
from federated.runtime.logs import conceal

__all__ = ["infer", "load_client_token"]


def infer(request: InferRequest, form: str, say: Say, stop: threading.Event | None = None) -> str:
    """Answer, and return the output of `edge-agent infer`: one line per example or one JSON
    object; for a service, its counts.

    say: prints messages for the user
    Raises UsageError, ConfigError, MissingExtra, LinkError, FleetError, ExportError, DataError,
    StoreError.
    """
    _check_request(request)
    remembers = request.broker is not None and request.serves
    store = request.store / f"@{request.name}" if remembers else None
    data = None if request.data is None else request.load_data()
    held = None if data is None else (data.x_held, data.y_held)
    engine = Engine(store, threads=request.threads, held=held)
    if request.serves:
        return _serve(request, engine, form, say, stop or threading.Event())
    explain_only = request.explain and not request.inputs
    # before the release is downloaded and tested
    sources: Sequence[Path | None] = () if explain_only else list_inputs(request.inputs)
    path = _open(engine, request)
    assert engine.session is not None
    assert engine.choice is not None
    if request.explain:
        say(format_trials(engine.choice))
    if explain_only and form == "text":
        return ""
    rows = [
        (source, one)
        for source in sources
        for one in engine.answer(
            read_examples(source, engine.session, resize=request.resize), str(source)
        ).answers
    ]
    if form == "json":
        tried = (
            {"tried": [asdict(trial) for trial in engine.choice.trials]} if request.explain else {}
        )
        answers = [{"input": str(source or "-"), **one} for source, one in rows]
        return json.dumps(
            {**describe_choice(engine.choice), "model": str(path), **tried, "answers": answers}
        )
    return "\n".join(f"{source or '-'}: {format_answer(one)}" for source, one in rows)


def _check_request(request: InferRequest) -> None:
    request.check_source("an exported .onnx file or the folder of a release")
    if request.sha256 is not None and (request.model is None or request.model.is_dir()):
        raise UsageError("--sha256 requires --model FILE; a release is always checked")
    if request.sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", request.sha256):
        raise UsageError(f"--sha256: expected 64 hexadecimal digits, found '{request.sha256[:80]}'")
    if request.mqtt and request.broker is None:
        raise UsageError("--mqtt requires --broker")
    if request.serves and (request.inputs or request.explain):
        raise UsageError("--serve and --mqtt cannot be combined with INPUTS or --explain")
    if request.token_file is not None and request.serve is None:
        raise UsageError("--token-file requires --serve")
    if request.data is None and (request.shard is not None or request.root is not None):
        raise UsageError("--shard and --data-root require --data")


def _open(engine: Engine, request: InferRequest) -> Path:
    """Load the requested network into the engine, and return its path."""
    if request.model is not None and not request.model.is_dir():
        engine.open(request.model, request.sha256)
        return request.model
    folder, submodel = request.find_release()
    with show_progress("testing the release"):
        engine.adopt(folder, submodel)
    return folder


def _serve(
    request: InferRequest, engine: Engine, form: str, say: Say, stop: threading.Event
) -> str:
    from edge_agent.infer.serving_loop import serve

    endpoint = None
    if request.serve is not None:
        address = parse_listen_address(request.serve, "--serve", "127.0.0.1:8080")
        token = "" if request.token_file is None else load_client_token(request.token_file)
        endpoint = address, token
        with require_extra("edge-agent infer --serve", "serve"):
            import edge_agent.infer.http_server  # noqa: F401 (whether it can be)
    if request.model is not None:
        _open(engine, request)
    counts = serve(request, engine, stop, say, endpoint)
    if form == "json":
        last = {} if engine.choice is None else describe_choice(engine.choice)
        return json.dumps({**last, **asdict(counts)})
    return f"answered {counts.answered} examples, failed {counts.failed} requests"


MIN_TOKEN_LENGTH = 16  # characters
REMEDY = "create a file with a random token, such as with: openssl rand -hex 16 > FILE"


def load_client_token(path: Path) -> str:
    """Read the token that clients must send. Raises ConfigError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"--token-file {path}: {reason}; {REMEDY}") from error
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path}: expected a token of at least {MIN_TOKEN_LENGTH} letters "
            f"or digits without spaces, found {len(token)} characters; {REMEDY}"
        )
    conceal(token)
    return token
