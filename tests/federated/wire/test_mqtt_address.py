"""Addresses as users write them, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from federated.errors import UsageError
from federated.wire.mqtt_address import MqttAddress, add_credentials, format_url, parse_mqtt_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker", MqttAddress("broker", 1883)),
        ("broker:1884", MqttAddress("broker", 1884)),
        ("10.0.0.1", MqttAddress("10.0.0.1", 1883)),
        ("[::1]", MqttAddress("::1", 1883)),
        ("[::1]:99", MqttAddress("::1", 99)),
        ("mqtt://broker/", MqttAddress("broker", 1883)),
        ("mqtt://me:p%40ss:w@broker:5", MqttAddress("broker", 5, user="me", password="p@ss:w")),
        ("mqtts://broker", MqttAddress("broker", 8883, tls=True)),
        (
            "mqtts://u@[fe80::1]:9?ca=/etc/ca.pem",
            MqttAddress("fe80::1", 9, tls=True, user="u", ca="/etc/ca.pem"),
        ),
        (
            "mqtts://b?ca=a%20b.pem&cert=c.pem&key=k",
            MqttAddress("b", 8883, tls=True, ca="a b.pem", cert="c.pem", key="k"),
        ),
        ("ws://broker", MqttAddress("broker", 80, path="/mqtt")),
        ("wss://u@broker/", MqttAddress("broker", 443, tls=True, user="u", path="/mqtt")),
        (
            "wss://[::1]:9/a/b?ca=c.pem",
            MqttAddress("::1", 9, tls=True, ca="c.pem", path="/a/b"),
        ),
        ("ws://b/\u00e4 b%20", MqttAddress("b", 80, path="/%C3%A4%20b%20")),
        ("mqtts://b:443", MqttAddress("b", 443, tls=True, alpn="mqtt")),
        ("mqtts://b:443?alpn=x", MqttAddress("b", 443, tls=True, alpn="x")),
    ],
)
def test_an_address_is_parsed(text: str, expected: MqttAddress) -> None:
    assert parse_mqtt_address(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host is missing"),
        (":1883", "host is missing"),
        ("broker:0", "port 0"),
        ("broker:99999", "number from 1 to 65535"),
        ("broker:abc", "number from 1 to 65535"),
        ("::1", "brackets"),
        ("fe80::1:1883", "brackets"),
        ("[::1", "Invalid IPv6"),
        ("mqtt://a..b", "the host is not a valid name"),
        ("a" * 64, "the host is not a valid name"),
        ("mqtt://a b", "the host is not a valid name"),
        ("mqtt://a\x0bb", "the host is not a valid name"),
        ("http://broker", "none of mqtt, mqtts, ws, wss"),
        ("mqtt://broker/path", "only ws:// and wss:// take a path"),
        ("mqtt://broker?ca=x", "only mqtts://"),
        ("mqtts://broker?cart=x", "only mqtts:// and wss:// take options"),
        ("ws://broker?ca=x", "only mqtts:// and wss:// take options"),
        ("wss://broker?alpn=x", "mqtts:// also"),
        ("mqtts://broker?key=x", "requires cert=FILE"),
    ],
)
def test_an_invalid_address_is_a_usage_error_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_mqtt_address(text)


def test_a_password_is_shown_neither_in_an_address_nor_in_an_error() -> None:
    address = parse_mqtt_address("mqtt://me:secret@broker")
    assert "secret" not in f"{address} {address!r}"
    assert str(address) == "mqtt://broker:1883"
    assert str(parse_mqtt_address("mqtts://[::1]")) == "mqtts://[::1]:8883"
    assert str(parse_mqtt_address("wss://me:secret@b/x")) == "wss://b:443/x"
    assert str(parse_mqtt_address("mqtts://b:443")) == "mqtts://b:443"
    assert str(parse_mqtt_address("mqtts://b:443?alpn=x&ca=y")) == "mqtts://b:443?alpn=x"
    with pytest.raises(UsageError) as caught:
        parse_mqtt_address("mqtt://me:secret@broker:0")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "mqtt://u:secret/more@b",
        "mqtt://u:secret#more@b",
        "mqtt://u:12#secret@b",
        "mqtt://u:secret?more@b",
        "ws://u:12/secret@b",
    ],
)
def test_no_piece_of_an_unquoted_password_is_shown_in_an_error(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_mqtt_address(text)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "mqtt://b:1883",
        "mqtts://[::1]:9",
        "mqtts://u:p%40%2F@b:8883?ca=a+b.pem&cert=c%26d.pem",
        "mqtts://b:443",
        "ws://b:80/a%20b",
        "wss://u@b?cert=c",
    ],
)
def test_a_formatted_address_is_parsed_back(text: str) -> None:
    assert parse_mqtt_address(format_url(parse_mqtt_address(text))) == parse_mqtt_address(text)


def test_added_credentials_do_not_replace_those_of_the_address() -> None:
    assert add_credentials(parse_mqtt_address("mqtts://b?ca=mine"), "ca", "cert") == MqttAddress(
        "b", 8883, tls=True, ca="mine", cert="cert"
    )
