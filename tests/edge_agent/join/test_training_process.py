"""Networks that a training process refuses, its reports, and the channel that carries them."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer

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

NET = network("preresnet", (1, 8, 8), 10)
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


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Return the two ends of a channel."""
    pipes = [os.pipe(), os.pipe()]
    incoming = [os.fdopen(end, "rb", buffering=0) for end, _ in pipes]
    outgoing = [os.fdopen(end, "wb", buffering=0) for _, end in reversed(pipes)]
    ours, theirs = map(Channel, incoming, outgoing)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_channel_carries_large_messages_in_order_until_it_is_closed(
    ends: tuple[Channel, Channel],
) -> None:
    ours, theirs = ends
    assert not theirs.ready()
    for message in ({"do": 1}, {"all": "x" * 10**6}):
        ours.send(message)
    assert theirs.receive() == {"do": 1}
    assert theirs.receive() == {"all": "x" * 10**6}
    ours.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            theirs.receive()
    assert theirs.ready()


def test_a_channel_waits_for_a_message_without_taking_it(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert not theirs.ready(0.01)
    Timer(0.01, ours.send, ({"do": 1},)).start()
    assert theirs.ready(60.0)
    assert theirs.ready()
    assert theirs.receive() == {"do": 1}
    assert not theirs.ready()


def test_a_channel_skips_what_a_library_prints() -> None:
    end, printing = os.pipe()
    os.write(printing, b"loading fonts: 3 found\n")
    outgoing = os.fdopen(printing, "wb", buffering=0)
    channel = Channel(os.fdopen(end, "rb", buffering=0), outgoing)
    channel.send({"do": 1})  # to itself
    assert channel.receive() == {"do": 1}
    channel.close()


def test_a_channel_to_a_dead_process_is_a_broken_pipe() -> None:
    end, outgoing = os.pipe()
    os.close(end)
    empty, ours = os.pipe()
    channel = Channel(os.fdopen(empty, "rb", buffering=0), os.fdopen(outgoing, "wb", buffering=0))
    with pytest.raises(BrokenPipeError):
        channel.send({"do": 1})
    channel.close()
    os.close(ours)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[Channel, Channel]
) -> None:
    """PyTorch's own message names other processes of the machine."""

    def exhausted(*given: object, **named: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Process 684 has 78.06 GiB memory in use.")

    monkeypatch.setattr("federated.device.trainers.pytorch_trainer.copy_weights", exhausted)
    ours, theirs = ends
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
    ours.close()
    serving.join()


def test_work_on_a_network_that_cannot_be_built_or_fed_is_refused(
    tmp_path: Path, ends: tuple[Channel, Channel]
) -> None:
    """The process goes on to the next request."""
    ours, theirs = ends
    serving = Thread(target=serve, args=(theirs,))
    serving.start()
    ours.send(asdict(replace(job(), limits=Limits(cpus=torch.get_num_threads()))))
    ours.receive()  # the card
    broken = replace(PLAIN, mask=((1,),))
    ours.send({"do": "measure", "run": run(calibration=(broken,), menu=()), "fresh": True})
    answer = ours.receive()
    assert answer["error"] == "data"
    assert "cannot measure: mask ((1,),)" in answer["arguments"][0]
    texts = replace(PLAIN, network=replace(NET, vocabulary=5))
    files = {"weights": str(tmp_path / "w"), "result": str(tmp_path / "r")}
    ours.send({"do": "task", "number": 1, "task": task(texts), **files})
    assert "texts of a vocabulary of 5 tokens" in ours.receive()["failed"]
    ours.close()
    serving.join()


def test_downloads_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[Channel, Channel]
) -> None:
    """torchvision's own code downloads a small archive of the same form from this machine."""
    from PIL import Image

    from federated.data import published_images

    site = tmp_path / "site"
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for index in range(5):
                Image.new("RGB", (32, 32), (index, 0, 0)).save(folder / f"{index}.png")
    site.mkdir()
    archive = site / "CINIC-10.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for part in ("train", "test"):
            tar.add(tmp_path / part, part)
    served = partial(SimpleHTTPRequestHandler, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), served)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{archive.name}"
    monkeypatch.setattr(published_images, "CINIC", address)
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(published_images, "CINIC_MD5", md5)
    ours, theirs = ends
    serving = Thread(target=serve, args=(theirs,))
    serving.start()
    ours.send(asdict(replace(job(), data="cinic10", root=str(tmp_path / "root"), shard="0/1")))
    size = archive.stat().st_size
    assert ours.receive() == {"downloaded": [size, size]}
    assert ours.receive()["answer"]["examples"] == 8
    ours.close()
    serving.join()
    server.shutdown()
    server.server_close()
