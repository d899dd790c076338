"""Scenarios of the attacks benchmark in which strangers attack a coordinator with TLS: floods,
guessed tokens, and certificates that are missing, foreign, expired, revoked, or another agent's.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from benchmarks.faults.parts.trial_parts import Process
from benchmarks.faults.trial import Trial
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import RUN
from coordinator.simulate.demo_fleet import python_command
from edge_agent.access.enrolment import enrol
from federated.errors import EspalierError, LinkError
from federated.wire import envelope, messages, topics
from federated.wire.enrolment_token import SECRET, Token
from federated.wire.links.catalogue import open_link
from federated.wire.mqtt_address import MqttAddress, format_url

__all__ = ["STRANGERS", "make_address"]

ROUNDS = 10  # an attack lasts for all of them
REVOKED_WITHIN = 10.0  # seconds until a revoked agent must be disconnected
PAUSE = 0.05  # seconds between two guesses

Scenario = Callable[[Trial], None]
Attack = Callable[[Trial, TlsSetup], int]
"""One attempt of an attack, which is repeated. It returns the number of forbidden actions that
succeeded.
"""


def attack(once: Attack) -> Scenario:
    """Return a scenario that repeats an attack beside the run."""

    def prepare(trial: Trial) -> None:
        tls, stop = configure_tls(trial), threading.Event()

        def repeat() -> None:
            while not stop.wait(PAUSE):
                # the server does not listen yet, or it closed the connection
                with contextlib.suppress(OSError, EspalierError):
                    trial.intruded += once(trial, tls)

        def begin() -> None:
            thread = threading.Thread(target=repeat, daemon=True)
            thread.start()
            trial.stack.callback(thread.join, 30.0)
            trial.stack.callback(stop.set)  # called before the join
            trial.record_fault()

        trial.after_begin.append(begin)

    return prepare


def configure_tls(trial: Trial) -> TlsSetup:
    """Configure a trial with TLS, certificates, and an attack that lasts for all rounds."""
    trial.tls = trial.tls or TlsSetup(trial.folder / "pki")
    trial.rounds = ROUNDS
    return trial.tls


# ---- floods --------------------------------------------------------------------------------------


def flood(kind: str, port: Callable[[TlsSetup], int]) -> Scenario:
    """Return a scenario that floods a port. kind: see `benchmarks.attacks.connection_flood`."""

    def prepare(trial: Trial) -> None:
        tls = configure_tls(trial)

        def begin() -> None:
            stranger = Process("stranger", trial.folder)
            trial.stack.callback(stranger.kill)
            stranger.start(
                python_command("benchmarks.attacks.connection_flood", kind, str(port(tls)))
            )
            trial.record_fault()

        trial.after_begin.append(begin)

    return prepare


def broker_port(tls: TlsSetup) -> int:
    return tls.port


def enrolment_port(tls: TlsSetup) -> int:
    return tls.enrolment


# ---- credentials ---------------------------------------------------------------------------------


def may_connect(tls: TlsSetup, certificate: Path | None) -> int:
    """Return 1 if the broker accepts a client with this certificate."""
    address = make_address(tls, certificate)
    try:
        open_link(address, f"stranger-{secrets.token_hex(4)}").close()
    except LinkError:
        return 0
    return 1


def make_address(tls: TlsSetup, certificate: Path | None) -> str:
    """Return the broker's address for a client with a certificate, or without one."""
    files = str(tls.authority.ca), None if certificate is None else str(certificate)
    return format_url(MqttAddress("localhost", tls.port, tls=True, ca=files[0], cert=files[1]))


def show_nothing(trial: Trial, tls: TlsSetup) -> int:
    return may_connect(tls, None)


def show_foreign(trial: Trial, tls: TlsSetup) -> int:
    """Show the certificate of another authority, in the name of an agent."""
    other = TlsSetup(trial.folder / "other" / "pki", tls.port, tls.enrolment)
    with closing(other):
        name = f"a{secrets.token_hex(3)}"
        return may_connect(tls, other.enrol([name])[name][1])


def show_expired(trial: Trial, tls: TlsSetup) -> int:
    name = f"old-{secrets.token_hex(3)}"
    certificate = tls.enrol([name], timedelta(seconds=1))[name][1]
    time.sleep(1.5)
    return may_connect(tls, certificate)


def guess_token(trial: Trial, tls: TlsSetup) -> int:
    """Guess the secret of a token."""
    token = Token(
        "a0", "localhost", tls.enrolment, secrets.token_bytes(SECRET), tls.authority.fingerprint
    )
    folder = trial.folder / "guesses" / secrets.token_hex(4)
    folder.mkdir(parents=True)
    enrol(token, folder)
    return 1


def stay_after_revocation(trial: Trial, tls: TlsSetup) -> int:
    """Stay connected, connect again, or publish after the certificate was revoked."""
    name = f"lost-{secrets.token_hex(3)}"
    certificate = tls.enrol([name])[name][1]
    link = open_link(make_address(tls, certificate), f"{RUN}-{name}")
    tls.authority.revoke(name)
    until = time.monotonic() + REVOKED_WITHIN
    try:
        while time.monotonic() < until:
            link.publish(topics.say(RUN, name), b"still here")
            link.receive(0.1)
    except LinkError:
        return may_connect(tls, certificate)
    finally:
        link.close()
    return 1


def speak_for_another(trial: Trial, tls: TlsSetup) -> int:
    """Publish as another agent, as the coordinator, and to the broker's own control."""
    name = f"mimic-{secrets.token_hex(3)}"
    certificate = tls.enrol([name])[name][1]
    mark = secrets.token_hex(8)
    gone = envelope.encode(messages.Status("a0", mark, False))
    topics_of_others = {
        topics.status(RUN, "a0"): gone,
        topics.say(RUN, "a0"): mark.encode(),
        topics.run(RUN): envelope.encode(messages.Goodbye(mark), 1 << 60),
        topics.command(RUN, "a1"): envelope.encode(messages.Goodbye(mark), 1 << 60),
        topics.dynamic_security(): mark.encode(),
    }
    with closing(
        open_link(make_address(tls, tls.authority.coordinator), f"listener-{mark}")
    ) as listener:
        listener.subscribe(topics.all_topics())
        for topic, payload in topics_of_others.items():
            with contextlib.suppress(LinkError):
                link = open_link(make_address(tls, certificate), f"{RUN}-{name}")
                with closing(link):
                    link.publish(topic, payload)
                    link.flush(2.0)
        heard, until = 0, time.monotonic() + 1.0
        while time.monotonic() < until:
            delivery = listener.receive(0.1)
            heard += delivery is not None and mark.encode() in delivery.payload
        return heard


def listen_to_all(trial: Trial, tls: TlsSetup) -> int:
    """Subscribe to what other agents send and receive."""
    name = f"ear-{secrets.token_hex(3)}"
    certificate = tls.enrol([name])[name][1]
    heard = 0
    for pattern in (
        topics.all_topics(),
        topics.all_commands(),
        *topics.coordinator_patterns(RUN)[1:],
    ):
        link = open_link(make_address(tls, certificate), f"{RUN}-{name}")
        with closing(link), contextlib.suppress(LinkError):
            link.subscribe(pattern)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                delivery = link.receive(0.1)
                where = topics.parse(delivery.topic) if delivery is not None else None
                heard += where is not None and where.agent not in (None, name)
    return heard


def behind_tls(trial: Trial) -> None:
    """No attack: a run with TLS, to compare with."""
    configure_tls(trial)
    trial.after_begin.append(trial.record_fault)


STRANGERS: Mapping[str, Scenario] = MappingProxyType(
    {
        "flood of the enrolment port": flood("bare", enrolment_port),
        "flood of the enrolment port, TLS": flood("tls", enrolment_port),
        "silence at the enrolment port": flood("silent", enrolment_port),
        "flood of the broker": flood("bare", broker_port),
        "silence at the broker": flood("silent", broker_port),
        "no certificate": attack(show_nothing),
        "certificate of another authority": attack(show_foreign),
        "expired certificate": attack(show_expired),
        "guessed tokens": attack(guess_token),
        "revoked agent": attack(stay_after_revocation),
        "speaks for another": attack(speak_for_another),
        "listens to others": attack(listen_to_all),
    }
)
