"""`edge-agent infer`: answer with a release, once for some inputs, or over HTTP or MQTT until
stopped. Does not import torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edge_agent.access.http_address import listening, token_of
from edge_agent.infer.answers import format_answer
from edge_agent.infer.engine import Engine
from edge_agent.infer.graph_choice import table
from edge_agent.infer.graph_trial import Held
from edge_agent.infer.inputs import list_inputs, read_examples
from edge_agent.infer.replies import about
from export import bundle
from federated.errors import MissingExtra, UsageError
from federated.runtime.console import Say

__all__ = ["InferRequest", "infer", "select_submodel"]


@dataclass(frozen=True)
class InferRequest:
    """Options of the command.

    broker, model: source of the network, exactly one of them
    store: folder of releases
    data, root, shard, partition, seed: this device's own data, if `data` is set

    The other fields are the command's options.
    """

    name: str
    broker: str | None = None
    model: Path | None = None
    run: str | None = None
    submodel: str | None = None
    sha256: str | None = None
    store: Path = Path("espalier-models")
    wait: float = 30.0
    inputs: tuple[Path, ...] = ()
    resize: bool = False
    explain: bool = False
    threads: int = 0
    serve: str | None = None
    token_file: Path | None = None
    mqtt: bool = False
    data: str | None = None
    root: str | None = None
    shard: str | None = None
    partition: str = "dirichlet:1.0"
    seed: int = 0

    @property
    def serves(self) -> bool:
        """Whether the command serves until stopped."""
        return self.serve is not None or self.mqtt


def infer(request: InferRequest, form: str, say: Say, stop: threading.Event | None = None) -> str:
    """Answer, and return the output of `edge-agent infer`: one line per example or one JSON
    object; for a service, its counts.

    say: prints messages for the user
    Raises UsageError, ConfigError, MissingExtra, LinkError, FleetError, ExportError, DataError,
    StoreError.
    """
    _check_request(request)
    remembers = request.broker is not None and request.serves
    engine = Engine(
        request.store / f"@{request.name}" if remembers else None,
        threads=request.threads,
        held=_load_held_out(request),
    )
    if request.serves:
        return _serve(request, engine, form, say, stop or threading.Event())
    path = _open(engine, request)
    assert engine.session is not None
    assert engine.choice is not None
    if request.explain:
        say(table(engine.choice))
    if request.explain and not request.inputs and form == "text":
        return ""
    sources: Sequence[Path | None] = (
        () if request.explain and not request.inputs else list_inputs(request.inputs)
    )
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
        return json.dumps({**about(engine.choice), "model": str(path), **tried, "answers": answers})
    return "\n".join(f"{source or '-'}: {format_answer(one)}" for source, one in rows)


def select_submodel(folder: Path, submodel: str | None) -> str:
    """Return the requested submodel of a release folder, or its only one. Raises ExportError,
    Unknown, UsageError.
    """
    if submodel is not None:
        return submodel
    whole = [
        entry
        for entry in bundle.manifest(folder).submodels
        if all((folder / v.file.name).exists() for v in entry.variants)
    ]
    if len(whole) != 1:
        raise UsageError(
            f"{folder} has {', '.join(entry.label for entry in whole) or 'no complete submodel'}; "
            "choose one with --submodel"
        )
    return whole[0].submodel


def _check_request(request: InferRequest) -> None:
    if (request.broker is None) == (request.model is None):
        raise UsageError("set either --broker to download a network, or --model FILE or FOLDER")
    if request.sha256 is not None and (request.model is None or request.model.is_dir()):
        raise UsageError("--sha256 requires --model FILE; a release is always checked")
    if request.mqtt and request.broker is None:
        raise UsageError("--mqtt requires --broker")
    if request.serves and (request.inputs or request.explain):
        raise UsageError("--serve and --mqtt cannot be combined with INPUTS or --explain")
    if request.token_file is not None and request.serve is None:
        raise UsageError("--token-file requires --serve")
    if request.data is None and (request.shard is not None or request.root is not None):
        raise UsageError("--shard and --data-root require --data")


def _load_held_out(request: InferRequest) -> Held | None:
    """Return this device's own held-out examples if the request names its data. Raises Unknown,
    DataError, MissingExtra.
    """
    if request.data is None:
        return None
    from federated.data.catalogue import device

    data = device(
        request.data,
        request.root,
        name=request.name,
        shard=request.shard,
        partition=request.partition,
        seed=request.seed,
    )
    return data.x_held, data.y_held


def _open(engine: Engine, request: InferRequest) -> Path:
    """Load the requested network into the engine, and return its path."""
    if request.broker is not None:
        from edge_agent.infer.fetch import fetch_from

        folder, submodel = fetch_from(
            request.broker,
            request.run,
            request.submodel or request.name,
            request.store,
            request.wait,
        )
        engine.adopt(folder, submodel)
        return folder
    assert request.model is not None
    if request.model.is_dir():
        engine.adopt(request.model, select_submodel(request.model, request.submodel))
    else:
        engine.open(request.model, request.sha256)
    return request.model


def _serve(
    request: InferRequest, engine: Engine, form: str, say: Say, stop: threading.Event
) -> str:
    from edge_agent.infer.service import ServicePlan, serve

    address, token = None, ""
    if request.serve is not None:
        address = listening(request.serve)
        token = "" if request.token_file is None else token_of(request.token_file)
        try:
            import edge_agent.infer.http_server  # noqa: F401 (whether it can be)
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "edge-agent infer --serve", "serve", error.name or "starlette"
            ) from error
    if request.model is not None:
        _open(engine, request)
    plan = ServicePlan(
        request.name,
        request.broker or "",
        request.run,
        request.submodel,
        request.store,
        address,
        token,
        request.mqtt,
    )
    counts = serve(plan, engine, stop, say)
    if form == "json":
        last = {} if engine.choice is None else about(engine.choice)
        return json.dumps({**last, **asdict(counts)})
    return f"answered {counts.answered} examples, failed {counts.failed} requests"
