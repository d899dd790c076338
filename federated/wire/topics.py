"""The only file that spells topics. All live under `fl/v1/{run}/`:

run                                  retained    the run's card
agent/{id}/status                    retained    birth, and the last will
agent/{id}/profile                   retained    what the agent measured of itself
agent/{id}/release                   retained    what the agent answers with, and how well
agent/{id}/hb                        QoS 0       heartbeat
agent/{id}/say                                   offers and failures of the agent
agent/{id}/probe                                 an agent's echo to itself, to measure its link
agent/{id}/up/{transfer}/c/{i}                   an update's chunks
infer/{id}/ask/{question}                        JSON: what anyone asks of what an agent serves
infer/{id}/answer/{question}                     JSON: what it answers
cmd/{id}, cmd/all                                what the coordinator says to one agent, or to all
model/{slot}/{submodel}/manifest, /c/{i}         retained    weights, until no task needs them; a
later version reuses the slot release/card                                     retained    which
version is for all, which for a few release/{version}/{file}/manifest, /c/{i}        retained    the
files of a release
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from federated.errors import UsageError

__all__ = [
    "AGENT",
    "ALL",
    "FILE",
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
    "any_run",
    "ask",
    "chunk",
    "command",
    "coordinator_patterns",
    "everyone",
    "heartbeat",
    "manifest",
    "matches",
    "model",
    "parse",
    "probe",
    "profile",
    "release",
    "release_card",
    "release_manifests",
    "retained_patterns",
    "run",
    "say",
    "serving",
    "status",
    "upload",
]

ROOT = "fl/v1"
ALL = "all"  # the command topic that every agent hears, hence no agent's name
NAME = r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,64}\Z"  # never a path: runs and agents have folders
# characters of a submodel's name without its owner: found at the start of a run, so that all that
# it becomes part of has room
UNOWNED = 128
SUBMODEL = r"^(?!\.\.?\Z)[A-Za-z0-9_.@-]{1,193}\Z"  # that, `@`, and an agent
# that of a submodel, a round, an attempt and a work; with what is added to it, the name of a file
TRANSFER = r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,225}\Z"
VERSION = r"^[0-9a-f]{12}\Z"  # of a release: the first digits of its manifest's sha256
# the name of a submodel and what kind of file it is; never a path
FILE = r"^(?![.])[A-Za-z0-9_.@-]{1,200}\Z"
AGENT = r"^(?!all\Z|\.\.?\Z)[A-Za-z0-9_.-]{1,64}\Z"

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
    "ask",
    "answer",
]


@dataclass(frozen=True)
class Place:
    """What a topic says. `agent` is None where it names none, "all" for the shared command topic;
    `index` is that of a chunk, else -1.

    way: which transfer a manifest or a chunk belongs to. question: names one to an agent that
    serves, and its answer.
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
    """The retained card of a run. Every function here raises UsageError for a name that is no topic
    level.
    """
    return f"{ROOT}/{_name('run', name)}/run"


def any_run() -> str:
    """The pattern of the cards of all runs that a broker knows."""
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


def ask(run: str, agent: str, question: str) -> str:
    """Where anyone asks what an agent serves; `+` for any question."""
    return _question(run, agent, "ask", question)


def answer(run: str, agent: str, question: str) -> str:
    """Where the agent answers."""
    return _question(run, agent, "answer", question)


def command(run: str, agent: str) -> str:
    """Where one agent hears the coordinator."""
    return f"{ROOT}/{_name('run', run)}/cmd/{_name('agent', agent, AGENT)}"


def everyone(run: str) -> str:
    """Where all agents hear the coordinator."""
    return f"{ROOT}/{_name('run', run)}/cmd/{ALL}"


def upload(run: str, agent: str, transfer: str) -> str:
    """Base of an update's chunks."""
    return _agent(run, agent, f"up/{_name('transfer', transfer, TRANSFER)}")


def model(run: str, slot: str, submodel: str) -> str:
    """Where a submodel's weights are published. Slots are few and reused, since some brokers never
    forget a topic or a pattern.
    """
    place = f"{_name('slot', slot)}/{_name('submodel', submodel, SUBMODEL)}"
    return f"{ROOT}/{_name('run', run)}/model/{place}"


def release(run: str, version: str, file: str) -> str:
    """Base of a file of a release."""
    if not re.match(VERSION, version):
        raise UsageError(f"version: expected 12 hexadecimal digits, found {version!r}")
    return f"{ROOT}/{_name('run', run)}/release/{version}/{_name('file', file, FILE)}"


def release_card(run: str) -> str:
    """Which versions a run released, and for whom; `+` for any run."""
    return f"{ROOT}/{run if run == '+' else _name('run', run)}/release/card"


def release_manifests(run: str) -> str:
    """The pattern of the manifests of all files that a run released."""
    return f"{ROOT}/{_name('run', run)}/release/+/+/manifest"


def serving(run: str, agent: str) -> str:
    """What an agent answers with; `+` for any agent."""
    return (
        f"{ROOT}/{_name('run', run)}/agent/+/release"
        if agent == "+"
        else _agent(run, agent, "release")
    )


def manifest(base: str) -> str:
    return f"{base}/manifest"


def chunk(base: str, index: int | Literal["+"]) -> str:
    """One chunk below a base, or the pattern of them all."""
    return f"{base}/c/{index}"


def agent_patterns(run: str, agent: str) -> tuple[str, ...]:
    """What an agent listens to, its own status included: it shows a second agent of the same
    name.
    """
    return globals()["run"](run), command(run, agent), everyone(run), status(run, agent)


def agent_rights() -> tuple[tuple[Literal["read", "write"], str], ...]:
    """What a broker is to let an agent do, in any run, and nothing else; `%u` is the name that the
    broker knows it by.
    """
    own = f"{ROOT}/+/agent/%u"
    heard = (
        f"{ROOT}/+/{what}"
        for what in ("run", "cmd/%u", f"cmd/{ALL}", "model/#", "release/#", "infer/%u/ask/+")
    )
    return (
        ("write", f"{own}/#"),
        ("write", f"{ROOT}/+/infer/%u/answer/+"),
        *(("read", pattern) for pattern in (*heard, f"{own}/status", f"{own}/probe")),
    )


def all_topics() -> str:
    """The pattern of everything of ours."""
    return f"{ROOT}/#"


def all_commands() -> str:
    """The pattern of what coordinators say to agents."""
    return f"{ROOT}/+/cmd/#"


def retained_patterns() -> tuple[str, ...]:
    """The patterns of weights and releases, whose chunks stay retained."""
    return f"{ROOT}/+/model/#", f"{ROOT}/+/release/#"


def coordinator_patterns(run: str) -> tuple[str, ...]:
    """What a coordinator listens to."""
    base = f"{ROOT}/{_name('run', run)}/agent/+"
    return tuple(f"{base}/{what}" for what in ("status", "profile", "hb", "say", "up/+/c/+"))


def parse(topic: str) -> Place | None:
    """What a topic says, or None where it is none of ours."""
    if not topic.startswith(ROOT + "/"):
        return None
    match topic[len(ROOT) + 1 :].split("/"):
        case [r, "run"]:
            place = Place("run", r)
        case [r, "agent", a, ("status" | "profile" | "hb" | "say" | "probe" | "release") as kind]:
            place = Place(_KINDS[kind], r, a)
        case [r, "agent", a, "up", t, "c", i]:
            place = Place("chunk", r, a, transfer=t, index=_index(i), way="up")
        case [r, "infer", a, ("ask" | "answer") as said, q]:
            place = Place("ask" if said == "ask" else "answer", r, a, question=q)
        case [r, "cmd", a]:
            place = Place("cmd", r, a)
        case [r, "model", v, s, "manifest"]:
            place = Place("manifest", r, version=v, submodel=s, way="model")
        case [r, "model", v, s, "c", i]:
            place = Place("chunk", r, version=v, submodel=s, index=_index(i), way="model")
        case [r, "release", "card"]:
            place = Place("card", r, way="release")
        case [r, "release", v, f, "manifest"]:
            place = Place("manifest", r, version=v, file=f, way="release")
        case [r, "release", v, f, "c", i]:
            place = Place("chunk", r, version=v, file=f, index=_index(i), way="release")
        case _:
            return None
    return place if _sound(place) else None


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to `pattern` hears `topic` (MQTT 5, section 4.7): `+` is one level, a
    last `#` all the rest and its parent.
    """
    want, have = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and want[0] in ("+", "#"):
        return False
    for i, level in enumerate(want):
        if level == "#":
            return True
        if i >= len(have) or level not in ("+", have[i]):
            return False
    return len(want) == len(have)


_KINDS: dict[str, Kind] = {
    "status": "status",
    "profile": "profile",
    "hb": "hb",
    "say": "say",
    "probe": "probe",
    "release": "release",
}


def _agent(run: str, agent: str, what: str) -> str:
    return f"{ROOT}/{_name('run', run)}/agent/{_name('agent', agent, AGENT)}/{what}"


def _question(run: str, agent: str, what: str, question: str) -> str:
    level = question if question == "+" else _name("question", question, TRANSFER)
    return f"{ROOT}/{_name('run', run)}/infer/{_name('agent', agent, AGENT)}/{what}/{level}"


def _name(what: str, name: str, pattern: str = NAME) -> str:
    if not re.match(pattern, name):
        allowed = "letters, digits, '_', '.', '-'" + (
            ", '@'" if pattern in (SUBMODEL, FILE) else ""
        )
        reserved = (
            f", and not '{ALL}', '.' or '..'"
            if pattern is AGENT
            else ", and no '.' first"
            if pattern is FILE
            else ", and not '.' or '..'"
        )
        raise UsageError(
            f"{what} name: expected 1 to "
            f"{pattern.split(',')[1].split('}')[0]} of {allowed}{reserved}; found {name!r}"
        )
    return name


def _index(level: str) -> int:
    """A chunk's index as this file spells it, or -1: neither `+1` nor `01` nor digits of other
    scripts.
    """
    return int(level) if re.match(r"^(0|[1-9][0-9]{0,9})\Z", level) else -1


def _sound(place: Place) -> bool:
    """Whether every level is a name that this file would have written. Levels that a kind does not
    have keep their defaults.
    """
    wanted = [(place.run, NAME)]
    if place.agent is not None:
        wanted.append((place.agent, NAME if place.kind == "cmd" else AGENT))
    if place.way == "up":
        wanted.append((place.transfer, TRANSFER))
    if place.kind in ("ask", "answer"):
        wanted.append((place.question, TRANSFER))
    if place.way == "model":
        wanted += [(place.version, NAME), (place.submodel, SUBMODEL)]
    if place.way == "release" and place.kind != "card":
        wanted += [(place.version, VERSION), (place.file, FILE)]
    return all(re.match(pattern, name) for name, pattern in wanted) and (
        place.kind != "chunk" or place.index >= 0
    )
