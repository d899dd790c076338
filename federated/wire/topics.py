"""Build and parse all MQTT topics. No other file builds topic names. All are below `fl/v1/{run}/`:

run                                       retained  the run's card, which joining agents read
agent/{id}/status                         retained  status, also as the last will
agent/{id}/profile                        retained  the agent's measurements of its device
agent/{id}/release                        retained  report of a serving agent
agent/{id}/software                       retained  its report on the wanted software
agent/{id}/hb                             QoS 0     heartbeat
agent/{id}/say                                      offers and failures of the agent
agent/{id}/probe, /probe/...                        an agent's messages to itself, to test a broker
agent/{id}/up/{transfer}/c/{i}                      chunks of an update
infer/{id}/ask/{question}                           request to a serving agent, JSON
infer/{id}/answer/{question}                        its answer, JSON
cmd/{id}, cmd/all                                   from the coordinator to one agent, or to all
model/{slot}/{submodel}/manifest, /c/{i}  retained  weights, while a task needs them
model/graph/{sha256}/manifest, /c/{i}     retained  training graphs of the run
release/card                              retained  released versions and their agents
release/software                          retained  the wanted version of the agents' software
release/{version}/{file}/manifest, /c/{i} retained  files of a release

In a transfer, a submodel and a file, topics spell '.' as ',': RabbitMQ turns '.' into '/'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from federated.errors import UsageError

__all__ = [
    "AGENT",
    "FILE",
    "GRAPHS",
    "NAME",
    "ROOT",
    "SUBMODEL",
    "TRANSFER",
    "UNOWNED",
    "VERSION",
    "Place",
    "agent_patterns",
    "agent_rights",
    "all_commands",
    "all_topics",
    "answer",
    "any_probe",
    "any_run",
    "ask",
    "chunk",
    "command",
    "coordinator_patterns",
    "deep_probe",
    "dynamic_security",
    "dynamic_security_answer",
    "everyone",
    "excluded_patterns",
    "find_sender",
    "graph",
    "heartbeat",
    "manifest",
    "matches",
    "model",
    "parse",
    "permits",
    "probe",
    "profile",
    "release",
    "release_card",
    "release_manifests",
    "retained_patterns",
    "run",
    "say",
    "serving",
    "shared",
    "status",
    "upload",
]

ROOT = "fl/v1"
GRAPHS = "graph"  # in the place of a slot
DOT = ","  # in names that users do not choose; it is in no name
ALL = "all"  # command topic of all agents, so no agent may have this name
NAME = r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,64}\Z"  # never a path: runs and agents have folders
# maximum length of a submodel's name without the agent that owns it, checked at the start of a run,
# so that the longer names below fit their limits
UNOWNED = 128
SUBMODEL = r"^(?!\.\.?\Z)[A-Za-z0-9_.@-]{1,193}\Z"  # name of a submodel, or NAME@AGENT
# submodel, round, attempt and kind of work; also the stem of a file's name
TRANSFER = r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,225}\Z"
VERSION = r"^[0-9a-f]{12}\Z"  # of a release: the first digits of its manifest's sha256
# submodel and kind of file; never a path
FILE = r"^(?![.])[A-Za-z0-9_.@-]{1,200}\Z"
AGENT = r"^(?!all\Z|\.\.?\Z)[A-Za-z0-9_.-]{1,64}\Z"

# last levels of an agent's messages about itself
REPORTS = "status", "profile", "hb", "say", "probe", "release", "software"

Kind = Literal[
    "run",
    "status",
    "profile",
    "hb",
    "say",
    "probe",
    "cmd",
    "card",
    "manifest",
    "chunk",
    "release",
    "software",
    "ask",
    "answer",
]


@dataclass(frozen=True)
class Place:
    """A parsed topic.

    kind: kind of the message.
    run: name of the run.
    agent: "all" for the shared command topic; None without an agent.
    transfer, version, submodel, file: of a manifest or a chunk.
    index: of a chunk; otherwise -1.
    way: kind of transfer that a manifest or a chunk belongs to.
    question: name of a request to a serving agent, and of its answer.
    """

    kind: Kind
    run: str
    agent: str | None = None
    transfer: str = ""
    version: str = ""
    submodel: str = ""
    file: str = ""
    index: int = -1
    way: Literal["", "up", "model", "release"] = ""
    question: str = ""


def run(name: str) -> str:
    """Return the topic of a run's retained card. All functions here raise UsageError for a name
    that cannot be a topic level.
    """
    return f"{ROOT}/{_name('run', name)}/run"


def any_run() -> str:
    """Return the pattern of the cards of all runs."""
    return f"{ROOT}/+/run"


def status(run: str, agent: str) -> str:
    return _agent(run, agent, "status")


def profile(run: str, agent: str) -> str:
    return _agent(run, agent, "profile")


def heartbeat(run: str, agent: str) -> str:
    return _agent(run, agent, "hb")


def say(run: str, agent: str) -> str:
    return _agent(run, agent, "say")


def probe(run: str, agent: str) -> str:
    return _agent(run, agent, "probe")


def any_probe(run: str) -> str:
    """Return the pattern of the messages that all agents send to themselves."""
    return f"{ROOT}/{_name('run', run)}/agent/+/probe"


def deep_probe(run: str, agent: str, length: int) -> str:
    """Return a topic that an agent may publish on, with as many levels as those of an update's
    chunks. length: characters of the level in the transfer's place.
    """
    return chunk(f"{probe(run, agent)}/{'x' * length}", 0)


def shared(group: str, pattern: str) -> str:
    """Return the subscription of a group, each message of which goes to one member."""
    return f"$share/{_name('group', group)}/{pattern}"


def ask(run: str, agent: str, question: str) -> str:
    """Return the topic of a request to a serving agent; `+` for any question."""
    return _question(run, agent, "ask", question)


def answer(run: str, agent: str, question: str) -> str:
    """Return the topic of its answer."""
    return _question(run, agent, "answer", question)


def command(run: str, agent: str) -> str:
    """Return the topic of the coordinator's messages to one agent."""
    return f"{ROOT}/{_name('run', run)}/cmd/{_name('agent', agent, AGENT)}"


def everyone(run: str) -> str:
    """Return the topic of the coordinator's messages to all agents."""
    return f"{ROOT}/{_name('run', run)}/cmd/{ALL}"


def upload(run: str, agent: str, transfer: str) -> str:
    """Return the topic under which an update's chunks are published."""
    return _agent(run, agent, f"up/{_spell('transfer', transfer, TRANSFER)}")


def model(run: str, slot: str, submodel: str) -> str:
    """Return the topic under which a submodel's weights are published. Slots are few and reused,
    since some brokers never free the memory of a topic.
    """
    place = f"{_name('slot', slot)}/{_spell('submodel', submodel, SUBMODEL)}"
    return f"{ROOT}/{_name('run', run)}/model/{place}"


def graph(run: str, digest: str) -> str:
    """Return the topic under which a training graph is published. Agents may read it as they may
    read weights.
    """
    return model(run, GRAPHS, digest)


def release(run: str, version: str, file: str) -> str:
    """Return the base of a file of a release."""
    if not re.match(VERSION, version):
        raise UsageError(f"version: expected 12 hexadecimal digits, found {version!r}")
    return f"{ROOT}/{_name('run', run)}/release/{version}/{_spell('file', file, FILE)}"


def release_card(run: str, what: Literal["card", "software"] = "card") -> str:
    """Return the topic of a run's card of released models, or of wanted software; `+`: any run."""
    return f"{ROOT}/{run if run == '+' else _name('run', run)}/release/{what}"


def release_manifests(run: str) -> str:
    """Return the pattern of the manifests of all files that a run released."""
    return f"{ROOT}/{_name('run', run)}/release/+/+/manifest"


def serving(run: str, agent: str, what: Literal["release", "software"] = "release") -> str:
    """Return the topic of an agent's report on such a card; `+` for any agent."""
    every = f"{ROOT}/{_name('run', run)}/agent/+/{what}"
    return every if agent == "+" else _agent(run, agent, what)


def manifest(base: str) -> str:
    return f"{base}/manifest"


def chunk(base: str, index: int | Literal["+"]) -> str:
    """Return the topic of a chunk below a base, or the pattern of all of them."""
    return f"{base}/c/{index}"


def agent_patterns(run: str, agent: str) -> tuple[str, ...]:
    """Return the patterns that an agent subscribes to. One is its own status topic, where a foreign
    status reveals another agent with the same name.
    """
    return globals()["run"](run), command(run, agent), everyone(run), status(run, agent)


def agent_rights() -> tuple[tuple[Literal["read", "write"], str], ...]:
    """Return all rights of an agent at a broker, in any run; `%u` is its authenticated name."""
    own = f"{ROOT}/+/agent/%u"
    common = "run", "cmd/%u", f"cmd/{ALL}", "model/#", "release/#", "infer/%u/ask/+"
    readable = (f"{ROOT}/+/{what}" for what in common)
    return (
        ("write", f"{own}/#"),
        ("write", f"{ROOT}/+/infer/%u/answer/+"),
        *(("read", pattern) for pattern in (*readable, f"{own}/status", f"{own}/probe")),
    )


def excluded_patterns(run: str, agent: str) -> tuple[str, ...]:
    """Return what an agent may not use in a run that excludes it; it may still announce itself."""
    own = f"agent/{_name('agent', agent, AGENT)}"
    patterns = "model/#", "release/#", "infer/#", f"cmd/{ALL}", f"{own}/release", f"{own}/up/#"
    return tuple(f"{ROOT}/{_name('run', run)}/{pattern}" for pattern in patterns)


def permits(run: str, agent: str, access: Literal["read", "write"], topic: str) -> bool:
    """Return True if an agent of a run may publish on a topic, or subscribe to it or a pattern."""
    own = [pattern.replace("+", run, 1) for kind, pattern in agent_rights() if kind == access]
    return any(matches(pattern.replace("%u", agent), topic) for pattern in own)


def all_topics() -> str:
    """Return the pattern of all topics of this project."""
    return f"{ROOT}/#"


def dynamic_security() -> str:
    """Return the topic of commands to mosquitto's dynamic-security plugin."""
    return "$CONTROL/dynamic-security/v1"


def dynamic_security_answer() -> str:
    """Return the topic of that plugin's answers."""
    return f"{dynamic_security()}/response"


def all_commands() -> str:
    """Return the pattern of all messages from coordinators to agents."""
    return f"{ROOT}/+/cmd/#"


def retained_patterns() -> tuple[str, ...]:
    """Return the patterns of retained weights and releases."""
    return f"{ROOT}/+/model/#", f"{ROOT}/+/release/#"


def coordinator_patterns(run: str, *, chunks: bool = True) -> tuple[str, ...]:
    """Return the patterns that a coordinator subscribes to, with those of updates in chunks or
    without. The run's card reveals another coordinator of the run.
    """
    base = f"{ROOT}/{_name('run', run)}/agent/+"
    kinds = ("status", "profile", "hb", "say", *(["up/+/c/+"] if chunks else []))
    return globals()["run"](run), *(f"{base}/{what}" for what in kinds)


def find_sender(topic: str) -> str:
    """Return the agent whose topic it is, without checking the topic; empty if it has none."""
    levels = topic.split("/", 5)
    return levels[4] if len(levels) > 4 and levels[3] == "agent" else ""


def parse(topic: str) -> Place | None:
    """Parse a topic; None if it is not one of this project."""
    if not topic.startswith(ROOT + "/"):
        return None
    match topic[len(ROOT) + 1 :].split("/"):
        case [r, "run"]:
            place = Place("run", r)
        case [r, "agent", a, kind] if kind in REPORTS:
            place = Place(_KINDS[kind], r, a)
        case [r, "agent", a, "up", t, "c", i]:
            place = Place("chunk", r, a, transfer=_read(t), index=_index(i), way="up")
        case [r, "infer", a, ("ask" | "answer") as said, q]:
            place = Place("ask" if said == "ask" else "answer", r, a, question=q)
        case [r, "cmd", a]:
            place = Place("cmd", r, a)
        case [r, "model", v, s, "manifest"]:
            place = Place("manifest", r, version=v, submodel=_read(s), way="model")
        case [r, "model", v, s, "c", i]:
            place = Place("chunk", r, version=v, submodel=_read(s), index=_index(i), way="model")
        case [r, "release", ("card" | "software") as kind]:
            place = Place(_KINDS[kind], r, way="release")
        case [r, "release", v, f, "manifest"]:
            place = Place("manifest", r, version=v, file=_read(f), way="release")
        case [r, "release", v, f, "c", i]:
            place = Place("chunk", r, version=v, file=_read(f), index=_index(i), way="release")
        case _:
            return None
    return place if _is_valid(place) else None


def matches(pattern: str, topic: str) -> bool:
    """Return True if a subscription to `pattern` covers `topic`, or all that a pattern `topic`
    covers (MQTT 5, section 4.7): `+` is one level, a last `#` all further levels and their parent.
    """
    want, have = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and want[0] in ("+", "#"):
        return False
    for i, level in enumerate(want):
        if level == "#":
            return True
        if i >= len(have) or have[i] == "#" or level not in ("+", have[i]):
            return False
    return len(want) == len(have)


_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


def _agent(run: str, agent: str, what: str) -> str:
    return f"{ROOT}/{_name('run', run)}/agent/{_name('agent', agent, AGENT)}/{what}"


def _question(run: str, agent: str, what: str, question: str) -> str:
    level = question if question == "+" else _name("question", question, TRANSFER)
    return f"{ROOT}/{_name('run', run)}/infer/{_name('agent', agent, AGENT)}/{what}/{level}"


@lru_cache(2**14)  # valid names of transfers, agents and submodels, which are short
def _name(what: str, name: str, pattern: str = NAME) -> str:
    if not re.match(pattern, name):
        allowed = (
            "letters, digits, '_', '.', '-' or '@'"
            if pattern in (SUBMODEL, FILE)
            else "letters, digits, '_', '.' or '-'"
        )
        reserved = (
            f", and not '{ALL}', '.' or '..'"
            if pattern is AGENT
            else ", and not '.' as the first character"
            if pattern is FILE
            else ", and not '.' or '..'"
        )
        raise UsageError(
            f"{what} name: expected 1 to "
            f"{pattern.split(',')[1].split('}')[0]} characters ({allowed}){reserved}; "
            f"found {name!r}"
        )
    return name


def _spell(what: str, name: str, pattern: str) -> str:
    return _name(what, name, pattern).replace(".", DOT)


def _read(level: str) -> str:
    """Return the name that `_spell` spelled; empty, which cannot be a name, for any other level."""
    return "" if "." in level else level.replace(DOT, ".")


def _index(level: str) -> int:
    """Return a chunk's index, or -1 if it is not plain decimal, as `+1`, `01` or other scripts."""
    return int(level) if re.match(r"^(0|[1-9][0-9]{0,9})\Z", level) else -1


def _is_valid(place: Place) -> bool:
    """Return True if every level is a name that the functions here accept."""
    wanted = [(place.run, NAME)]
    if place.agent is not None:
        wanted.append((place.agent, NAME if place.kind == "cmd" else AGENT))
    if place.way == "up":
        wanted.append((place.transfer, TRANSFER))
    if place.kind in ("ask", "answer"):
        wanted.append((place.question, TRANSFER))
    if place.way == "model":
        wanted += [(place.version, NAME), (place.submodel, SUBMODEL)]
    if place.way == "release" and place.kind not in ("card", "software"):
        wanted += [(place.version, VERSION), (place.file, FILE)]
    named = all(re.match(pattern, name) for name, pattern in wanted)
    return named and (place.kind != "chunk" or place.index >= 0)
