"""Read the options of commands that use a release: its source, and this device's own data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export import release_reader
from federated.data.dataset import Dataset
from federated.defaults import PARTITION, SEED
from federated.errors import ConfigError, UsageError

__all__ = ["ReleaseRequest", "select_submodel"]


@dataclass(frozen=True)
class ReleaseRequest:
    """Options of `edge-agent infer` and `edge-agent finetune`.

    name: name of the agent
    broker, model: source of the network, exactly one of them
    run: run to use; None if the broker has only one
    submodel: None for the agent's own
    store: folder of releases
    wait: seconds to wait for a release
    data, root, shard, partition, seed: this device's own data, if `data` is set
    """

    name: str
    broker: str | None = None
    model: Path | None = None
    run: str | None = None
    submodel: str | None = None
    store: Path = Path("espalier-models")
    wait: float = 30.0
    data: str | None = None
    root: str | None = None
    shard: str | None = None
    partition: str = PARTITION
    seed: int = SEED

    def check_source(self, expected: str) -> None:
        """Raise UsageError unless exactly one source is set, ConfigError if it does not exist.

        expected: what `model` may be, in words.
        """
        if self.broker is None and self.model is None:
            raise UsageError(
                "--broker and --model are missing: set --broker HOST to download a release, or "
                "--model PATH to use an exported network"
            )
        if self.broker is not None and self.model is not None:
            raise UsageError("--broker and --model cannot be combined: use one of them")
        if self.model is not None and not self.model.exists():
            raise ConfigError(
                f"--model {self.model}: no such file or folder; expected {expected}, as "
                "`coordinator export` writes it"
            )

    def find_release(self) -> tuple[Path, str]:
        """Return the folder of the release, downloaded if necessary, and the submodel to use.
        Raises LinkError, FleetError, StoreError, ExportError, Unknown, UsageError.
        """
        if self.broker is not None:
            from edge_agent.releases.release_follower import fetch_from

            wanted = self.submodel or self.name
            return fetch_from(self.broker, self.run, wanted, self.store, self.wait)
        assert self.model is not None
        return self.model, select_submodel(self.model, self.submodel)

    def load_data(self) -> Dataset:
        """Load this device's own data. Raises Unknown, DataError, MissingExtra."""
        from federated.data.loading import load_device

        assert self.data is not None
        return load_device(
            self.data,
            self.root,
            name=self.name,
            shard=self.shard,
            partition=self.partition,
            seed=self.seed,
        )


def select_submodel(folder: Path, submodel: str | None) -> str:
    """Return the requested submodel of a release folder, or its only one. Raises ExportError,
    UsageError.
    """
    if submodel is not None:
        return submodel
    complete = [
        entry
        for entry in release_reader.read_manifest(folder).submodels
        if all((folder / variant.file.name).exists() for variant in entry.variants)
    ]
    if len(complete) != 1:
        found = ", ".join(entry.label for entry in complete) or "no complete submodel"
        raise UsageError(f"{folder} has {found}; choose one with --submodel")
    return complete[0].submodel
