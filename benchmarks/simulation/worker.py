"""Run one simulation in this process, and print what it needed as the last line, in JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.simulation.meter import Contestant

__all__ = ["main"]


def main() -> None:
    module, function, rounds = sys.argv[1:]
    simulate: Contestant = getattr(importlib.import_module(module), function)
    found = simulate(int(rounds))
    print(f"\n{json.dumps(asdict(found))}", flush=True)


if __name__ == "__main__":
    main()
