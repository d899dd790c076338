"""Networks that a training process refuses, and its reports of failed tasks."""

from __future__ import annotations

from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import torch

from edge_agent.device.process_limits import Limits
from edge_agent.join.code_permission import check_allowed
from edge_agent.join.training_process import serve
from edge_agent.join.training_process_control import Channel, Job
from federated.errors import Refused
from federated.task import Recipe, Task
from federated.wire import tensors
from federated.wire.messages import Run
from models.named_network import network
from models.submodel_building import full
from tests.support.small_tasks import parameters

NET = network("preresnet", (1, 4, 4), 3)
PLAIN, FOREIGN = full(NET), replace(full(NET), network=replace(NET, family="os:system"))


def job(model: str = "") -> Job:
    return Job("a", "digits", None, "", "iid", 0, "cpu", model, Limits())


def run(**given: object) -> dict[str, object]:
    return msgspec.to_builtins(
        replace(Run("r", "recipfl", "preresnet", NET, (PLAIN,), 8, "s"), **given)
    )


def task(submodel, **options: object) -> dict[str, object]:
    return msgspec.to_builtins(
        Task(
            "r",
            1,
            1,
            "a",
            "train",
            submodel,
            "r0",
            "0" * 64,
            1,
            Recipe(hook="recipfl", options=options),
            9.0,
        )
    )


@pytest.mark.parametrize(
    "message",
    [
        run(calibration=(FOREIGN,)),
        run(menu=(PLAIN, FOREIGN)),
        task(FOREIGN),
        task(PLAIN, small=msgspec.to_builtins(FOREIGN)),
    ],
    ids=["timed", "menu", "task", "options"],
)
def test_a_function_that_the_owner_did_not_name_is_refused(message) -> None:
    with pytest.raises(Refused, match=r"os:system.*--model os:system"):
        check_allowed(job(), message)
    with pytest.raises(Refused):
        check_allowed(job("my:net"), message)
    check_allowed(job("os:system"), message)


def test_networks_of_this_package_need_no_permission() -> None:
    check_allowed(job(), run(menu=(PLAIN,), settings={"widths": (0.5, 1.0), "choice": "zico"}))
    check_allowed(job(), task(PLAIN, small=msgspec.to_builtins(PLAIN)))


def test_exhausted_gpu_memory_is_reported_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own message names other processes of the machine."""

    def exhausted(*given: object, **named: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Process 684 has 78.06 GiB memory in use.")

    monkeypatch.setattr("federated.device.trainers.pytorch_trainer.build_network", exhausted)
    ours, theirs = (Channel(end) for end in Pipe())
    serving = Thread(target=serve, args=(theirs,))
    serving.start()
    (tmp_path / "w").write_bytes(tensors.encode({}, parameters(PLAIN)))
    ours.send(asdict(replace(job(), limits=Limits(cpus=torch.get_num_threads()))))
    ours.receive()  # the card
    ours.send(
        {
            "do": "task",
            "number": 1,
            "task": task(PLAIN),
            "weights": str(tmp_path / "w"),
            "result": str(tmp_path / "r"),
        }
    )
    assert ours.receive() == {"number": 1, "failed": "out of memory with w1-d4.4.4 at batch 32"}
    ours.connection.close()
    serving.join()
