"""Seed torch's random generator, and restore it afterwards, without draws of other threads between.

Layers initialise themselves, and dropout draws, from one generator of the whole process.
`torch.random.fork_rng` alone may restore the state while another thread draws.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["isolate_random_state"]

_LOCK = threading.RLock()


@contextmanager
def isolate_random_state(seed: int, device: str = "cpu") -> Iterator[None]:
    """Seed torch's generators of the CPU and of a device, and restore them at the end. Other
    threads that want to draw wait until then.
    """
    cuda = device.startswith("cuda")
    with _LOCK, torch.random.fork_rng(devices=[device] if cuda else []):
        # torch.manual_seed would also seed the devices whose state is not restored
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
