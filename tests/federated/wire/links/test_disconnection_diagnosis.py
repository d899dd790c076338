"""The reason that a link states for connections that a broker closes."""

from __future__ import annotations

from federated.wire.links.disconnection_diagnosis import (
    MAX_UNACKNOWLEDGED,
    RESTARTS,
    RESTARTS_WITHIN,
    SHORTS,
    ConnectionHistory,
)

SMALL, LARGE = [("status", 300)], [("chunk", 200_000)]


def flap(
    in_flight: list[tuple[str, int]],
    times: int,
    *,
    resumed: bool,
    refused: bool = False,
    tolerant: bool = False,
) -> tuple[str, str]:
    """Lose connections of one second. Return the first error and the first warning.

    resumed: whether the broker keeps the session; refused: whether an attempt to reconnect fails.
    tolerant: whether the link only warns.
    """
    history = ConnectionHistory("mqtt://b:1", "a", 0.0, tolerant=tolerant)
    error, warning = "", ""
    for second in range(1, times + 1):
        found = history.record_end(False, in_flight, float(second))
        if refused:
            history.record_failure()
        warned = history.record_connection(resumed, second + 0.1)
        error, warning = error or found, warning or warned
    return error, warning


def test_a_broker_that_restarts_is_named_so_whatever_is_in_flight() -> None:
    for in_flight in ([], SMALL, LARGE):
        error, warning = flap(in_flight, 2 * SHORTS, resumed=False, refused=True)
        assert not error
        assert "probably restarts" in warning
        assert "wire.chunk" not in warning


def test_a_small_packet_is_never_the_reason() -> None:
    assert not flap(SMALL, MAX_UNACKNOWLEDGED, resumed=True)[0]


def test_a_large_packet_is_the_reason_if_the_broker_keeps_the_session() -> None:
    error, warning = flap(LARGE, MAX_UNACKNOWLEDGED, resumed=True)
    assert "packet of 200000 bytes (chunk)" in error
    assert not warning


def test_a_broker_without_sessions_may_also_reject_large_packets() -> None:
    assert not flap(SMALL, 2 * SHORTS, resumed=False)[0]
    error, _ = flap(LARGE, MAX_UNACKNOWLEDGED, resumed=False)
    assert "may restart, or accept no packets of that size" in error
    assert "(--name)" in error  # the reason of a takeover may not have arrived


def test_a_tolerant_link_only_warns() -> None:
    error, warning = flap(SMALL, 20 * SHORTS, resumed=True, tolerant=True)
    assert not error
    assert "keeps closing the connection" in warning
    assert "--name" in warning
    error, warning = flap(LARGE, MAX_UNACKNOWLEDGED, resumed=True, tolerant=True)
    assert not error
    assert "packet of 200000 bytes (chunk)" in warning
    assert (
        "may restart, or accept" in flap(LARGE, MAX_UNACKNOWLEDGED, resumed=False, tolerant=True)[1]
    )
    assert flap([], SHORTS - 1, resumed=True, tolerant=True) == ("", "")
    assert "keeps closing the connection" in flap(SMALL, SHORTS, resumed=True)[0]


def test_an_attempt_without_an_answer_clears_the_suspicion() -> None:
    history = ConnectionHistory("mqtt://b:1", "a", 0.0)
    for second in range(3 * MAX_UNACKNOWLEDGED):
        history.record_failure()
        assert not history.record_end(False, LARGE, float(second))
        assert not history.record_connection(True, float(second))


def test_rare_restarts_cause_no_warning() -> None:
    history = ConnectionHistory("mqtt://b:1", "a", 0.0)
    for n in range(2 * RESTARTS):
        assert not history.record_connection(False, n * RESTARTS_WITHIN)
