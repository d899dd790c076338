"""Write and read tensors in safetensors files (checkpoints, and the sums of unfinished rounds),
completely or not at all, and check their digests.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from coordinator.store.folder_check import find_problem
from federated.errors import StoreError, explain_os_errors
from federated.runtime.atomic_files import sha256
from federated.system.disk_sync import begin_sync, sync

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    texts: Mapping[str, str],
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write tensors and texts to a file, durably and completely or not at all, and return its
    sha256. Raises OSError.

    check: called before the file is moved into place; raises if this process may not write.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")
    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, part, dict(texts))
        begin_sync(part)
        digest = sha256(part)
        sync(part)
        check()
        part.replace(path)
        sync(path.parent)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        part.unlink(missing_ok=True)  # frees the space on a full disk
    return digest


def read_tensors(
    path: Path, digest: str, what: str, remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of the file with this sha256, memory-mapped, and its texts. Raises
    StoreError.

    what: names the file in errors. remedy: for a damaged file.
    """
    if problem := find_problem(path, digest):
        raise StoreError(f"{what} {problem}{remedy}")
    with (
        explain_os_errors(StoreError, f"cannot read {what}", SafetensorError),
        safe_open(path, framework="pt") as file,
    ):
        # `file` is not a mapping
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}
