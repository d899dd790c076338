"""Limits of brokers with their default settings, as their documentation states them, and the
settings of a run that contradict them (`broker.profile`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coordinator.settings.config import Config
from coordinator.settings.service_tables import ProfileName
from federated.errors import ConfigError
from federated.wire import topics
from federated.wire.link import OVERHEAD, SENT_SHARE, LimitableLink, Link

__all__ = [
    "PROFILES",
    "Profile",
    "check_profile",
    "find_profile",
    "limit_heartbeats",
    "limit_link",
    "uses_mqtt",
]

CHUNK_SLASHES = topics.deep_probe("r", "a", 1).count("/")  # in the topic of an update's chunk
# characters of an agent's client id beyond the run's name: see `tls.make_private_name`
AGENT_ID = len(f"-{'a' * 64}-probe-{'0' * 16}")


@dataclass(frozen=True)
class Profile:
    """Limits of a broker; None where its documentation states none, or one that no run reaches.

    name: of the broker.
    sources: addresses of the documentation.
    slashes: most in a topic.
    client_id: most bytes of a client's name.
    payload: most bytes of a message.
    queue: most messages that wait for one client; the broker drops others.
    messages: most per second and connection, in each direction; the broker drops others.
    throughput: most bytes per second and connection. The broker delays others, so links need not
        pace them: their own limit of unacknowledged messages slows them down.
    session: seconds for which it keeps the session of a lost connection.
    wildcards: whether subscriptions with wildcards certainly get retained messages.
    shared: whether those to any node of a cluster certainly do.
    dots: whether topics may contain '.'.
    """

    name: str
    sources: tuple[str, ...]
    slashes: int | None = None
    client_id: int | None = None
    payload: int | None = None
    queue: int | None = None
    messages: int | None = None
    throughput: int | None = None
    session: int | None = None
    wildcards: bool = True
    shared: bool = True
    dots: bool = True


PROFILES: Mapping[ProfileName, Profile] = {
    "aws": Profile(
        "AWS IoT Core",
        ("https://docs.aws.amazon.com/general/latest/gr/iot-core.html",),
        slashes=7,
        client_id=128,
        payload=128 << 10,
        messages=100,
        throughput=512 << 10,
        session=3600,
        wildcards=False,
    ),
    "emqx": Profile(
        "EMQX",
        ("https://docs.emqx.com/en/emqx/latest/configuration/mqtt.html",),
        slashes=127,
        payload=1 << 20,
        queue=1000,
        session=7200,
    ),
    "hivemq": Profile(
        "HiveMQ",
        (
            "https://github.com/hivemq/hivemq-community-edition/wiki/MQTT-Specific-Configuration",
            "https://docs.hivemq.com/hivemq-edge/mqtt-specific-configuration.html",
            "https://docs.hivemq.com/hivemq/latest/user-guide/configuration.html",
        ),
        queue=1000,
    ),
    "nats": Profile(
        "NATS with JetStream",
        (
            "https://docs.nats.io/running-a-nats-service/configuration/mqtt",
            "https://docs.nats.io/running-a-nats-service/configuration",
        ),
        payload=1 << 20,
        shared=False,
    ),
    "rabbitmq": Profile(
        "RabbitMQ",
        ("https://www.rabbitmq.com/docs/mqtt", "https://www.rabbitmq.com/docs/configure"),
        payload=16 << 20,
        session=86_400,
        wildcards=False,
        shared=False,
        dots=False,
    ),
}


def find_profile(name: ProfileName | Literal[""]) -> Profile | None:
    """Return the profile that `broker.profile` names; None if it is empty."""
    return PROFILES[name] if name else None


def limit_link(link: Link, profile: Profile | None) -> None:
    """Let a link send nothing beyond a broker's documented limits."""
    if profile is not None and isinstance(link, LimitableLink):
        link.limit(profile.payload, profile.messages)


def limit_heartbeats(profile: Profile | None) -> int:
    """Return the most heartbeats per second that a broker delivers to the coordinator while its
    link sends as fast as it may; 0: no limit.
    """
    if profile is None or profile.messages is None:
        return 0
    return max(1, round((1 - SENT_SHARE) * profile.messages))


def uses_mqtt(config: Config) -> bool:
    """Return True if weights or updates of a run may travel over MQTT."""
    return not (config.http.listen or config.http.store) or config.http.above > 0


def check_profile(config: Config) -> None:
    """Raise ConfigError for a setting that contradicts the profile of the broker."""
    if not config.broker.profile:
        return
    profile = PROFILES[config.broker.profile]
    where = f"broker.profile = '{config.broker.profile}'"
    if config.broker.url is None:
        raise ConfigError(f"{where} is for an existing broker: name its address (--broker)")
    if uses_mqtt(config) and profile.slashes is not None and profile.slashes < CHUNK_SLASHES:
        raise ConfigError(
            f"{where}: topics have at most {profile.slashes} slashes, and those of updates over "
            f"MQTT {CHUNK_SLASHES}: let all transfers use HTTP (http.listen = 'HOST:PORT' or "
            "http.store = 's3://BUCKET', http.above = 0)"
        )
    if profile.payload is not None and config.wire.chunk > profile.payload - OVERHEAD:
        raise ConfigError(
            f"{where}: expected wire.chunk of at most {profile.payload - OVERHEAD}, found "
            f"{config.wire.chunk}: messages have at most {profile.payload} bytes"
        )
    if profile.client_id is not None and len(config.name) > profile.client_id - AGENT_ID:
        raise ConfigError(
            f"{where}: expected a run's name of at most {profile.client_id - AGENT_ID} characters, "
            f"found {config.name!r}: client ids contain it, and have at most {profile.client_id}"
        )
    if not profile.dots and "." in config.name:
        raise ConfigError(
            f"{where}: expected a run's name without '.', which the broker turns into '/', found "
            f"{config.name!r}"
        )
