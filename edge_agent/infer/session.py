"""`edge-agent infer`: answer with what a run released, once for some inputs or until stopped, over
HTTP or MQTT. No torch here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edge_agent.access.http_address import listening, token_of
from edge_agent.infer.answers import told
from edge_agent.infer.engine import Engine
from edge_agent.infer.graph_choice import table
from edge_agent.infer.inputs import listed, read
from edge_agent.infer.replies import about
from edge_agent.infer.trial import Held
from export import bundle
from federated.errors import MissingExtra, UsageError
from federated.runtime.console import Say

__all__ = ["Request", "command", "released"]


@dataclass(frozen=True)
class Request:
    """What is asked for. broker, model: where the network comes from, one of them; the other fields
    as the command's options say.

    store: where releases are kept; data, root, shard, partition, seed: this device's own data, none
    where `data` is empty.
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
    def stays(self) -> bool:
        """Whether it answers until it is stopped."""
        return self.serve is not None or self.mqtt


def command(request: Request, form: str, say: Say, stop: threading.Event | None = None) -> str:
    """Answers; what `edge-agent infer` prints at its end: one line per example, or one JSON object;
    of a service, its counts. say: for people.

    Raises UsageError, ConfigError, MissingExtra, LinkError, FleetError, ExportError, DataError,
    StoreError.
    """
    _check(request)
    remembers = request.broker is not None and request.stays
    engine = Engine(
        request.store / f"@{request.name}" if remembers else None,
        threads=request.threads,
        held=_held(request),
    )
    if request.stays:
        return _serve(request, engine, form, say, stop or threading.Event())
    path = _open(engine, request)
    assert engine.session is not None
    assert engine.choice is not None
    if request.explain:
        say(table(engine.choice))
    if request.explain and not request.inputs and form == "text":
        return ""
    sources: Sequence[Path | None] = (
        () if request.explain and not request.inputs else listed(request.inputs)
    )
    rows = [
        (source, one)
        for source in sources
        for one in engine.answer(
            read(source, engine.session, resize=request.resize), str(source)
        ).answers
    ]
    if form == "json":
        tried = (
            {"tried": [asdict(trial) for trial in engine.choice.trials]} if request.explain else {}
        )
        answers = [{"input": str(source or "-"), **one} for source, one in rows]
        return json.dumps({**about(engine.choice), "model": str(path), **tried, "answers": answers})
    return "\n".join(f"{source or '-'}: {told(one)}" for source, one in rows)


def released(folder: Path, submodel: str | None) -> str:
    """The submodel of a release folder: the one that is wanted, or the only one. Raises
    ExportError, Unknown, UsageError.
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
            f"{folder} holds "
            f"{', '.join(entry.label for entry in whole) or 'no whole submodel'}: name "
            "one by --submodel"
        )
    return whole[0].submodel


def _check(request: Request) -> None:
    if (request.broker is None) == (request.model is None):
        raise UsageError("name either --broker to fetch a network from, or --model FILE or FOLDER")
    if request.sha256 is not None and (request.model is None or request.model.is_dir()):
        raise UsageError("--sha256 is of --model FILE: a release is checked anyway")
    if request.mqtt and request.broker is None:
        raise UsageError("--mqtt answers at a broker: name it by --broker")
    if request.stays and (request.inputs or request.explain):
        raise UsageError(
            "--serve and --mqtt answer whoever asks: name INPUTS, or --explain, in a "
            "command without them"
        )
    if request.token_file is not None and request.serve is None:
        raise UsageError("--token-file is of --serve")
    if request.data is None and (request.shard is not None or request.root is not None):
        raise UsageError("--shard and --data-root are of --data")


def _held(request: Request) -> Held | None:
    """This device's own held-out examples, where it names its data. Raises Unknown, DataError,
    MissingExtra.
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


def _open(engine: Engine, request: Request) -> Path:
    """Makes the engine answer with what is asked for; where that lies."""
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
        engine.adopt(request.model, released(request.model, request.submodel))
    else:
        engine.open(request.model, request.sha256)
    return request.model


def _serve(request: Request, engine: Engine, form: str, say: Say, stop: threading.Event) -> str:
    from edge_agent.infer.service import Plan, serve

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
    plan = Plan(
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
    return f"answered {counts.answered} examples, failed {counts.failed} questions"
