"""Scenarios of the attacks benchmark with an enrolled agent that lies, stays silent, sends very
slowly, or floods the broker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.faults.trial import Trial
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import RUN
from benchmarks.raw_agents.raw_agent import Alter, Falsify, RawAgent
from benchmarks.raw_agents.updates import Array
from federated.task import Profile, Timing, Update
from federated.wire import envelope, messages, topics
from federated.wire.link import OVERHEAD

__all__ = ["ATTACKERS", "LIAR", "MESSAGES"]

LIAR = "z0"
ROUNDS = 10  # the attack of an agent lasts for all of them
# seconds: configured limit of a round; without one, the first round waits a minute for an agent
# that was never measured
DEADLINE = 4.0
EPOCH: Mapping[str, object] = MappingProxyType({"train.steps": 0, "train.epochs": 1})
DRIP = 1.0  # seconds between two chunks of an agent that drips
RESTART = 2.0  # seconds between two processes of an agent that comes and goes
BURST = 50  # messages of a flood per turn
LARGE = (1 << 20) - OVERHEAD  # bytes of a large message: what the broker accepts
PATIENCE = 30.0  # seconds: limit of a round during a flood, whose agents answer unless suspended

Scenario = Callable[[Trial], None]


def add_attacker(trial: Trial) -> None:
    """Add an agent that attacks from the beginning of the run to its end."""
    trial.others.append(LIAR)
    trial.rounds = ROUNDS
    trial.settings["fleet.deadline"] = DEADLINE
    trial.after_begin.append(trial.record_fault)


def alter_messages(
    change: Callable[[RawAgent, str, bytes], Iterable[tuple[str, bytes]]],
) -> Scenario:
    """Return a scenario whose attacker publishes what `change` makes of its messages."""

    def prepare(trial: Trial) -> None:
        add_attacker(trial)

        def alter(name: str, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
            if name != LIAR:
                return [(topic, payload)]
            return change(trial.fleet.sockets[LIAR].agent, topic, payload)

        added: tuple[Alter, ...] = (*trial.how.alter, alter)
        trial.how = replace(trial.how, alter=added)

    return prepare


# ---- lies ----------------------------------------------------------------------------------------


def claim(change: Callable[[Profile], Profile]) -> Scenario:
    """Lie in the profile."""
    return alter_messages(lambda agent, topic, payload: [(topic, lie(change, topic, payload))])


def lie(change: Callable[[Profile], Profile], topic: str, payload: bytes) -> bytes:
    """Return a message of an agent; a profile is changed."""
    message = envelope.decode(payload) if payload and topic.endswith("/profile") else None
    return envelope.encode(change(message)) if isinstance(message, Profile) else payload


def count_many_examples(profile: Profile) -> Profile:
    return replace(profile, data=replace(profile.data, examples=1 << 39))


def claim_many_examples(trial: Trial) -> None:
    """Claim 2^39 examples in a run whose rounds train for an epoch."""
    claim(count_many_examples)(trial)
    trial.settings |= EPOCH


def claim_pace(seconds: float) -> Scenario:
    """Claim the seconds of every step."""

    def change(profile: Profile) -> Profile:
        timings = [Timing(one.submodel, one.batch, seconds) for one in profile.timings]
        return replace(profile, timings=tuple(timings))

    return claim(change)


def lie_in_heartbeats(agent: RawAgent, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
    """Claim progress in rounds that do not exist, without limit."""
    if not topic.endswith("/hb"):
        return [(topic, payload)]
    beat = messages.Heartbeat(LIAR, agent.session, "train", 1 << 40, 0.0, "train", 1 << 40)
    return [(topic, envelope.encode(beat))]


def send_false(falsify: Falsify) -> Scenario:
    """Send updates with other tensors or counts."""

    def prepare(trial: Trial) -> None:
        add_attacker(trial)
        lies: Mapping[str, Falsify] = {**trial.how.falsify, LIAR: falsify}
        trial.how = replace(trial.how, falsify=lies)

    return prepare


def change_tensors(change: Callable[[Array], Array]) -> Falsify:
    return lambda update, values: (update, {name: change(w) for name, w in values.items()})


def change_update(**fields: Any) -> Falsify:
    return lambda update, values: (replace(update, **fields), values)


def rename_tensors(update: Update, values: dict[str, Array]) -> tuple[Update, dict[str, Array]]:
    return update, {f"../../{name}": value for name, value in values.items()}


# ---- silence -------------------------------------------------------------------------------------


def is_answer(topic: str) -> bool:
    """Return True if a message of an agent answers a task."""
    where = topics.parse(topic)
    return where is not None and where.kind in ("say", "chunk")


def stay_mute(every: int) -> Scenario:
    """Send heartbeats but answer no task of every n-th round."""

    def drop(agent: RawAgent, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
        mute = agent.task is not None and agent.task.round % every == 0
        return [] if mute and is_answer(topic) else [(topic, payload)]

    return alter_messages(drop)


def deliver_once(trial: Trial) -> None:
    """Claim 2^39 examples, deliver the first update so that the claim counts as tried, and answer
    no later task. The fleet has only one other agent, and its rounds have no deadline.
    """

    def drop(agent: RawAgent, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
        if agent.task is not None and agent.task.round > 1 and is_answer(topic):
            return []
        return [(topic, lie(count_many_examples, topic, payload))]

    alter_messages(drop)(trial)
    trial.names = trial.names[:1]
    trial.settings |= {**EPOCH, "fleet.deadline": 0.0}


def drip(trial: Trial) -> None:
    """Offer each update, and send one small chunk at a time."""
    sent = 0.0

    def hold(agent: RawAgent, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
        nonlocal sent
        if "/up/" not in topic:
            return [(topic, payload)]
        if time.monotonic() - sent < DRIP:
            return []
        sent = time.monotonic()
        return [(topic, payload)]

    alter_messages(hold)(trial)


def come_and_go(trial: Trial) -> None:
    """Answer no task, and come back as a new process all the time."""
    stay_mute(1)(trial)
    due = time.monotonic() + RESTART

    def restart() -> None:
        nonlocal due
        if time.monotonic() >= due and trial.fleet.sockets[LIAR].client.is_connected():
            due = time.monotonic() + RESTART
            trial.fleet.sockets[LIAR].kill()

    trial.each_turn.append(restart)


# ---- floods --------------------------------------------------------------------------------------


def flood(make: Callable[[RawAgent, int], tuple[str, bytes]]) -> Scenario:
    """Publish as many messages as the broker takes, from the first task of the run on."""

    def prepare(trial: Trial) -> None:
        add_attacker(trial)
        # the agent is suspended, and the run must go on without it
        trial.settings |= {"fleet.deadline": PATIENCE, "fleet.min_agents": len(trial.names)}
        trial.tls = trial.tls or TlsSetup(trial.folder / "pki")  # only such a broker can stop it
        count = 0

        def wait() -> None:
            trial.fleet.sockets[LIAR].due = math.inf

        def publish() -> None:
            nonlocal count
            one = trial.fleet.sockets[LIAR]
            if math.isinf(one.due) and trial.round:
                one.due = 0.0
            if not one.client.is_connected() or one.client.want_write():
                return
            for _ in range(BURST):
                count += 1
                one.client.publish(*make(one.agent, count), qos=0)
                if one.client.want_write():  # large messages fill the socket
                    break

        trial.after_begin.append(wait)
        trial.each_turn.append(publish)

    return prepare


def make_beat(agent: RawAgent, count: int) -> tuple[str, bytes]:
    beat = messages.Heartbeat(LIAR, agent.session, "idle", count)
    return topics.heartbeat(RUN, LIAR), envelope.encode(beat)


def make_noise(agent: RawAgent, count: int) -> tuple[str, bytes]:
    return topics.say(RUN, LIAR), count.to_bytes(8, "little") * 32


def make_offer(agent: RawAgent, count: int) -> tuple[str, bytes]:
    manifest = messages.Manifest(f"t{count}", 1 << 40, 1 << 10, "0" * 64)
    offer = messages.Offer(manifest, RUN, 1, 1, "train", "w1-d1.1.1")
    return topics.say(RUN, LIAR), envelope.encode(offer)


def make_chunk(agent: RawAgent, count: int) -> tuple[str, bytes]:
    chunk = messages.Chunk(f"t{count}", 0, 1, 1 << 10, 0, memoryview(bytes(1 << 10)))
    return topics.chunk(topics.upload(RUN, LIAR, f"t{count}"), 0), envelope.encode(chunk)


def make_echo(agent: RawAgent, count: int) -> tuple[str, bytes]:
    return topics.say(RUN, LIAR), envelope.encode(messages.Echo(LIAR, float(count)))


def make_status(agent: RawAgent, count: int) -> tuple[str, bytes]:
    """Return the status of another process each time."""
    status = messages.Status(LIAR, f"{agent.session}-{count}", True)
    return topics.status(RUN, LIAR), envelope.encode(status)


def make_profile(agent: RawAgent, count: int) -> tuple[str, bytes]:
    if agent.card is None:
        return make_echo(agent, count)
    profile = replace(agent.make_profile(), cpus=1.0 + count)
    return topics.profile(RUN, LIAR), envelope.encode(profile)


def make_repeated_offer(agent: RawAgent, count: int) -> tuple[str, bytes]:
    """Return an offer for the agent's open task: the answer lists each of its many chunks."""
    if (task := agent.task) is None:
        return make_offer(agent, count)
    manifest = messages.Manifest(task.transfer, task.size, 1 << 10, "0" * 64)
    offer = messages.Offer(manifest, RUN, task.round, task.attempt, task.work, task.submodel.name)
    return topics.say(RUN, LIAR), envelope.encode(offer)


def make_failure(agent: RawAgent, count: int) -> tuple[str, bytes]:
    """Return the failure of a task that nobody asked for."""
    failure = messages.Failure(RUN, count, 1, "train", "w1-d1.1.1", "no")
    return topics.say(RUN, LIAR), envelope.encode(failure)


def make_misplaced_chunk(agent: RawAgent, count: int) -> tuple[str, bytes]:
    return topics.say(RUN, LIAR), make_chunk(agent, count)[1]


def make_large(agent: RawAgent, count: int) -> tuple[str, bytes]:
    return topics.say(RUN, LIAR), bytes(LARGE)


MESSAGES: Mapping[str, Callable[[RawAgent, int], tuple[str, bytes]]] = MappingProxyType(
    {
        "heartbeats": make_beat,
        "noise": make_noise,
        "offers": make_offer,
        "chunks": make_chunk,
        "echoes": make_echo,
        "statuses": make_status,
        "profiles": make_profile,
        "repeated offers": make_repeated_offer,
        "failures": make_failure,
        "misplaced chunks": make_misplaced_chunk,
        "large messages": make_large,
    }
)
"""Messages of which an enrolled agent can send too many: functions that make one."""

ATTACKERS: Mapping[str, Scenario] = MappingProxyType(
    {
        "claims 2^39 examples": claim_many_examples,
        "claims a million seconds a step": claim_pace(1e6),
        "claims 1e-12 seconds a step": claim_pace(1e-12),
        "claims no memory": claim(lambda p: replace(p, memory=1)),
        "claims all memory": claim(lambda p: replace(p, memory=1 << 61)),
        "lies in heartbeats": alter_messages(lie_in_heartbeats),
        "sends NaN": send_false(change_tensors(lambda w: w * np.float32("nan"))),
        "sends 1e30": send_false(change_tensors(lambda w: w * np.float32(1e30))),
        "sends other shapes": send_false(change_tensors(lambda w: w[..., None])),
        "sends other names": send_false(rename_tensors),
        "claims 2^50 samples": send_false(change_update(samples=1 << 50)),
        "claims another agent's update": send_false(change_update(agent="a0")),
        "mute": stay_mute(1),
        "mute every second round": stay_mute(2),
        "mute after a first update": deliver_once,
        "drips": drip,
        "comes and goes": come_and_go,
        **{f"flood of {name}": flood(make) for name, make in MESSAGES.items()},
    }
)
