"""Whole runs with encoded updates."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
import torch

from coordinator.run import runner
from coordinator.run.run_preparation import prepare
from coordinator.store.run_store import Store
from coordinator.trust import configured_defences
from federated.errors import StoreError, Unknown
from federated.wire.codecs.catalogue import codec_names, find_codec
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.cost import cost
from models.extension_lookup import NAMED
from models.named_network import network
from models.submodel_building import full, initial
from tests.support.memory_federation import Member, digits, federate, make_config, run_members
from tests.support.restarted_coordinator import Fuse, Killed

FEDAVG = {"method.name": "fedavg", "train.norm": "tracked", "model.name": "mlp", "train.steps": 2}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    with closing(Store.open(folder / "runs", "test", read_only=True)) as store:
        return store.read_checkpoint(1)[0]


@pytest.mark.parametrize(
    ("codec", "saved", "loss"),
    [("fp16", 2, 2**-11), ("int8", 3, 1 / 127), ("int8-zstd", 3.1, 1 / 127)],
)
def test_a_codec_changes_a_run_by_its_rounding_only(
    tmp_path: Path, codec: str, saved: float, loss: float
) -> None:
    """The same two agents train the same round. Uploads shrink, and each weight of the mean is off
    by at most `loss` times the largest change of a device.
    """
    if codec not in codec_names():
        pytest.skip(f"the codec {codec} is not installed")
    sent, found = {}, {}
    for name in ("raw", codec):
        members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
        made = federate(tmp_path / name, members, {**FEDAVG, "wire.codec": name})
        sent[name], found[name] = made.result.bytes_up, weights(tmp_path / name)
        assert made.result.rounds == 1
    values = 2 * sum(value.numel() for value in found["raw"].values())
    assert sent["raw"] - sent[codec] == pytest.approx(saved * values, rel=0.1)
    largest, before = 0.0, initial(network("mlp", (1, 8, 8), 10), make_config(FEDAVG).seed)
    for home, value in found["raw"].items():
        off = float((found[codec][home] - value).abs().max())
        # the mean of two changes can be small where they have opposite signs
        assert off <= loss * 4 * float((value - before[home]).abs().max()) + 2**-22, home
        largest = max(largest, off)
    assert largest > 0, "nothing was rounded: the codec was not used"


def test_only_a_device_with_a_slow_uplink_uses_the_codec_for_slow_uplinks(tmp_path: Path) -> None:
    """It trains the largest submodel, as the others do. Its raw update would miss the deadline."""
    net = network("mlp", (1, 8, 8), 10)
    size, deadline = 4 * cost(full(net)).parameters, 20.0
    given = {**FEDAVG, "method.widths": [0.25, 1.0], "fleet.deadline": deadline}
    sent = dict[str, int]()
    for codec in ("", "int8"):
        fast, slow = Member("fast", digits(0, 2)), Member("slow", digits(1, 2))
        slow.uplink = 2 * size / (1.2 * deadline)  # for the weights and the raw update
        made = federate(tmp_path / f"x{codec}", [fast, slow], {**given, "wire.slow_codec": codec})
        sent[codec] = made.result.bytes_up
        assert made.result.history.assigned["fast"].width == 1.0
        assert made.result.history.assigned["slow"].width == (1.0 if codec else 0.25)
        with closing(Store.open(tmp_path / f"x{codec}" / "runs", "test", read_only=True)) as store:
            reasons = [made.reason for _, made in store.agents.read_decisions("slow")]
        assert all(("updates in int8" in reason) is bool(codec) for reason in reasons)
    assert size < sent["int8"] < 1.5 * size


def test_an_agent_without_the_codec_is_not_asked(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 3)) for i in range(2)]
    lacking = Member("a2", digits(2, 3), codecs=("raw",))
    given = {**FEDAVG, "wire.codec": "fp16", "fleet.min_agents": 2}
    federate(tmp_path, [*members, lacking], given)
    assert lacking.participant is not None
    assert lacking.participant.state.refused
    assert "the codec 'fp16', which this device lacks (available: raw)" in str(
        lacking.participant.state.over
    )
    with closing(Store.open(tmp_path / "runs", "test", read_only=True)) as store:
        assert {entry.agent for entry in store.read_entries(1)} == {"a0", "a1"}


def test_an_unknown_codec_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="unknown codec 'fp61'; did you mean fp16"):
        federate(tmp_path, [Member("a0", digits(0, 2))], {**FEDAVG, "wire.codec": "fp61"})


TOY = "tests.support.toy_extensions:TOY_CODEC"


def resume_with(
    folder: Path, before: str, after: str, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Run a coordinator that dies when it folds the first update, and resume it with another codec
    in what stands for a new process. meanwhile: is done in between.
    """
    broker, fuse = MemoryBroker(), Fuse(1)
    find_codec(before)
    members = [Member("a0", digits(0, 1), codecs=(before, after))]
    with run_members(members, broker, folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(configured_defences, "fold", fuse.around(configured_defences.fold))
        for name, end in ((before, pytest.raises(Killed)), (after, nullcontext())):
            config = make_config({**FEDAVG, "rounds": 2, "wire.codec": name})
            prepared = prepare(config, folder / "runs", resume=name == after)
            link = MemoryLink(broker, "coordinator")
            with closing(prepared), closing(link), end:
                runner.run(prepared, link, lambda event: None)
            NAMED.clear()
            meanwhile()


@pytest.mark.usefixtures("forgotten_extensions")
@pytest.mark.parametrize(("before", "after"), [("fp16", "raw"), ("raw", "fp16"), (TOY, "raw")])
def test_a_resumed_run_reads_the_kept_updates_with_the_codec_of_their_tasks(
    tmp_path: Path, before: str, after: str
) -> None:
    """The round in progress ends as if the codec had not changed, and so does the run."""
    resume_with(tmp_path / "resumed", before, after)
    find_codec(before)
    member = Member("a0", digits(0, 1), codecs=(before,))
    federate(tmp_path / "whole", [member], {**FEDAVG, "wire.codec": before})
    found, expected = weights(tmp_path / "resumed"), weights(tmp_path / "whole")
    assert all(torch.equal(value, expected[home]) for home, value in found.items())
    store = Store.open(tmp_path / "resumed" / "runs", "test", read_only=True)
    assert store.rounds_done == 2
    store.close()


@pytest.mark.usefixtures("forgotten_extensions")
def test_a_run_cannot_be_resumed_without_the_codec_of_its_kept_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "passing_codec.py"
    module.write_text("from tests.support.toy_extensions import TOY_CODEC")

    def remove() -> None:
        module.unlink()
        del sys.modules["passing_codec"]
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)

    with pytest.raises(StoreError, match=r"'passing_codec:TOY_CODEC', and .* cannot be imported"):
        resume_with(tmp_path, "passing_codec:TOY_CODEC", "raw", remove)
