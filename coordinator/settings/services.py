"""The tables of a run's configuration about its broker, log and metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from federated.settings import Record

__all__ = ["Broker", "Log", "Metrics"]

Port = Annotated[int, Meta(ge=0, le=65535)]


class Broker(Record, frozen=True):
    """The MQTT broker: one that runs already, or one that is started with the run."""

    url: Annotated[
        str | None, Meta(description="An existing broker; without it, one is started.")
    ] = None
    listen: Annotated[str, Meta(description="Address of the started broker.")] = "127.0.0.1"
    port: Annotated[Port | None, Meta(description="Its port; by default 1883, with tls 8883.")] = (
        None
    )
    passwords: Annotated[
        str | None,
        Meta(description="Its mosquitto password file; this or tls is required beyond loopback."),
    ] = None
    kind: Annotated[
        Literal["auto", "mosquitto", "embedded"],
        Meta(description="auto: mosquitto if it is installed, else the embedded broker."),
    ] = "auto"
    tls: Annotated[
        bool, Meta(description="Whether only enrolled devices may connect, by certificate.")
    ] = False
    pki: Annotated[
        str,
        Meta(description="Folder of the certificate authority; empty: in this user's data."),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        Meta(description="More names and addresses by which devices reach this machine."),
    ] = ()
    enrol: Annotated[Port, Meta(description="Port where devices enroll.")] = 8884


class Log(Record, frozen=True):
    """The program's log. The events of a run are always in the run's folder."""

    format: Annotated[
        Literal["text", "json"], Meta(description="json: one object per line, with fields.")
    ] = "text"
    file: Annotated[
        str, Meta(description="Log to this file as well; it rotates. Empty: no file.")
    ] = ""


class Metrics(Record, frozen=True):
    """Metrics for Prometheus. Beyond loopback, all of these must be set."""

    listen: Annotated[str, Meta(description="HOST:PORT that answers requests; empty: none.")] = ""
    certificate: Annotated[str, Meta(description="Certificate file of this server.")] = ""
    key: Annotated[str, Meta(description="Key file of this server.")] = ""
    ca: Annotated[
        str, Meta(description="File of the authority whose certificates clients must have.")
    ] = ""
