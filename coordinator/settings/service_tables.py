"""Define the settings of the broker, the log and the metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from federated.settings_validation import Record
from federated.wire.enrolment_token import PORT as ENROLMENT_PORT
from federated.wire.mqtt_address import PORTS

__all__ = ["Broker", "Http", "Log", "Metrics", "Phones", "ProfileName"]

ProfileName = Literal["aws", "emqx", "hivemq", "nats", "rabbitmq"]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Broker(Record, frozen=True):
    """The MQTT broker: an existing one, or one that the run starts."""

    url: Annotated[
        str | None,
        Meta(description="Address of an existing broker; without it, the run starts one."),
    ] = None
    listen: Annotated[
        str,
        Meta(
            description="Address on which the started broker listens; with tls, the enrolment "
            "server also listens on it."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        Port | None,
        Meta(
            description=f"Port of the started broker; by default {PORTS['mqtt']}, with tls "
            f"{PORTS['mqtts']}."
        ),
    ] = None
    passwords: Annotated[
        str | None,
        Meta(
            description="Mosquitto password file of the started broker; required if other machines "
            "can connect and tls is false."
        ),
    ] = None
    kind: Annotated[
        Literal["auto", "mosquitto", "embedded"],
        Meta(description="Broker to start. auto: mosquitto if it is installed, else embedded."),
    ] = "auto"
    profile: Annotated[
        ProfileName | Literal[""],
        Meta(
            description="The existing broker, whose limits of topics, names, message sizes and "
            "rates the run obeys; empty: any."
        ),
    ] = ""
    tls: Annotated[
        bool, Meta(description="Allow only enrolled devices, which connect with certificates.")
    ] = False
    pki: Annotated[
        str,
        Meta(description="Folder of the certificate authority; empty: in the user's data folder."),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        Meta(description="Additional names and addresses of this machine in its certificate."),
    ] = ()
    enrol: Annotated[Port, Meta(description="Port on which devices enrol.")] = ENROLMENT_PORT
    ca: Annotated[
        str,
        Meta(
            description="Certificate file of another authority, such as a company's, that issues "
            "the certificates of the started broker and of all devices; requires certificate, key "
            "and crl. Empty: the fleet's own authority."
        ),
    ] = ""
    certificate: Annotated[
        str, Meta(description="Certificate file of the started broker, issued by broker.ca.")
    ] = ""
    key: Annotated[str, Meta(description="Key file of this certificate.")] = ""
    crl: Annotated[
        str, Meta(description="File of the lists of certificates that broker.ca revoked.")
    ] = ""


class Http(Record, frozen=True):
    """Transfers of weights and updates over HTTP instead of MQTT (the extra `serve` or `store`)."""

    listen: Annotated[
        str,
        Meta(
            description="Address of the coordinator's server for transfers, as HOST:PORT; empty: "
            "no server."
        ),
    ] = ""
    url: Annotated[
        str,
        Meta(
            description="Address at which agents reach the server or the store, such as that of a "
            "proxy in front of it; empty: https:// or http://, this machine's address and the "
            "port, or with a store http.endpoint."
        ),
    ] = ""
    certificate: Annotated[
        str,
        Meta(
            description="Certificate file of the server; empty: with broker.tls that of the "
            "authority, otherwise HTTP without TLS."
        ),
    ] = ""
    key: Annotated[str, Meta(description="Key file of this certificate.")] = ""
    above: Annotated[
        int, Meta(ge=0, description="Transfers of at most this number of bytes use MQTT.")
    ] = 0
    store: Annotated[
        str,
        Meta(
            description="S3-compatible bucket for transfers, instead of the coordinator's server, "
            "as s3://BUCKET[/PREFIX]; empty: none."
        ),
    ] = ""
    endpoint: Annotated[
        str, Meta(description="Address of the store, as https://HOST[:PORT]; empty: Amazon S3.")
    ] = ""
    region: Annotated[
        str,
        Meta(description="Region of the bucket; empty: that of the AWS configuration."),
    ] = ""
    expiry: Annotated[
        int,
        Meta(
            ge=10,
            le=604_800,
            description="Seconds for which an address of the store permits a transfer to begin.",
        ),
    ] = 3600


class Log(Record, frozen=True):
    """The program's log. Each run also keeps its events in its own folder."""

    format: Annotated[
        Literal["text", "json"], Meta(description="Format of the log. json: one object per line.")
    ] = "text"
    file: Annotated[
        str, Meta(description="Also log to this file, rotated at 8 MB; empty: no file.")
    ] = ""


class Metrics(Record, frozen=True):
    """Metrics for Prometheus. If other machines can connect, all of these settings are required."""

    listen: Annotated[
        str, Meta(description="Address of the metrics server, as HOST:PORT; empty: no server.")
    ] = ""
    certificate: Annotated[str, Meta(description="Certificate file of the metrics server.")] = ""
    key: Annotated[str, Meta(description="Key file of the metrics server.")] = ""
    ca: Annotated[
        str,
        Meta(description="Certificate file of the authority that signs the clients' certificates."),
    ] = ""


class Phones(Record, frozen=True):
    """The page with which phones join the run (the extra `web`)."""

    listen: Annotated[
        str, Meta(description="Address of the phones' page, as HOST:PORT; empty: no page.")
    ] = ""
    url: Annotated[
        str,
        Meta(
            description="Address at which phones reach the server of their page, such as that of a "
            "reverse proxy; empty: https:// or http://, this machine's address and the port."
        ),
    ] = ""
    certificate: Annotated[
        str, Meta(description="Certificate file of the phones' page; empty: HTTP without TLS.")
    ] = ""
    key: Annotated[str, Meta(description="Key file of this certificate.")] = ""
    tls: Annotated[
        bool,
        Meta(
            description="Serve the phones' page over HTTPS with a certificate of the fleet's "
            "authority, whose ca.pem each phone must trust."
        ),
    ] = False
