"""Open the transfers over HTTP that a run's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.http_transfers.store_transfers import use_store
from coordinator.http_transfers.transfer_server_process import serve_transfers
from coordinator.http_transfers.transfer_urls import Transfers
from coordinator.settings.config import Config
from federated.errors import ConfigError
from federated.runtime.console import Say
from federated.wire.link import get_scheme

__all__ = ["open_transfers"]


@contextmanager
def open_transfers(
    config: Config, spool: Path, say: Say, leads: Callable[[], bool] = lambda: True
) -> Iterator[Transfers | None]:
    """Serve transfers inside the context, or let them go through a store; None if the
    configuration asks for neither. spool: of the run. leads: whether no other coordinator took over
    the run. Raises UsageError, ConfigError, StoreError, MissingExtra.
    """
    wanted = config.http
    if wanted.store:
        with use_store(wanted, config.name, spool, say, leads) as stored:
            check_scheme(config, stored)
            yield stored
    elif wanted.listen:
        with serve_transfers(config, spool, say) as urls:
            check_scheme(config, urls)
            yield urls
    elif wanted.url:
        raise ConfigError("http.url: expected http.listen or http.store, too")
    else:
        yield None


def check_scheme(config: Config, transfers: Transfers) -> None:
    """Raise ConfigError for addresses without TLS if agents would refuse them."""
    broker, origin = config.broker, transfers.origin
    secure = broker.tls or (broker.url and get_scheme(broker.url) in ("mqtts", "wss"))
    if secure and not origin.startswith("https://"):
        raise ConfigError(
            f"the addresses of transfers are at {origin}, but agents that reach the broker with "
            "TLS accept only https://: name http.certificate and http.key, or a store or proxy "
            "with https:// (http.endpoint, http.url)"
        )
