"""`python -m benchmarks.attacks.command_with_short_keepalive MODULE ARGUMENTS...`: run a command
whose link has a keepalive of seconds, so that a short pause exceeds it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from federated.wire.links import mqtt_client_setup

__all__ = ["KEEPALIVE", "main"]

KEEPALIVE = 2  # seconds; the broker waits half as long again


def main(arguments: Sequence[str]) -> None:
    module, *rest = arguments
    mqtt_client_setup.KEEPALIVE = KEEPALIVE
    sys.argv = [module, *rest]
    importlib.import_module(module).main()


if __name__ == "__main__":
    main(sys.argv[1:])
