"""Simulated devices train on a Ray cluster, in processes that share no folder with the simulation,
and learn what they learn in processes of this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import load
from coordinator.simulate import ray_workers
from coordinator.simulate.simulation import simulate
from federated.errors import ConfigError, MissingExtra

ROOT = Path(__file__).parents[3]

# the devices keep variates between rounds, and each trains in half of the rounds
EXPERIMENT = """
rounds = 4
[model]
name = "mlp-small"
[method]
name = "scaffold"
[train]
steps = 2
batch = 16
[fleet]
fraction = 0.5
[evaluate]
examples = 20
every = 4
[simulate]
agents = 4
partition = "dirichlet:0.5"
"""


def experiment(folder: Path) -> Path:
    file = folder / "small.toml"
    file.write_text(EXPERIMENT)
    return file


def run(
    folder: Path, workers: object, say=print, model: str = "mlp-small"
) -> dict[str, torch.Tensor]:
    """Return the final weights."""
    folder.mkdir(exist_ok=True)
    settings = [f"simulate.workers={workers}", f"model.name={model}"]
    sources = ConfigSources(experiment(folder), settings=settings)
    simulate(sources, folder / "runs", folder / "out", say=say)
    return load_file(folder / "runs" / "small-seed0" / "round-000004.safetensors")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a cluster of two processors, whose processes see an empty folder in place of
    those of the tests, and the process that leads it.
    """
    pytest.importorskip("ray")
    hidden = tmp_path_factory.getbasetemp()
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(hidden)]
    if not shutil.which("unshare") or subprocess.run(probe, check=False).returncode:
        pytest.skip("needs the right to hide a folder from other processes (unshare --mount)")
    with (Path(tempfile.gettempdir()) / "one-ray-cluster.lock").open("w") as lock:
        # all clusters of a machine take ports from 23000 for their clients, and disturb each other
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from run_cluster(hidden)


def run_cluster(hidden: Path) -> Iterator[tuple[str, psutil.Process]]:
    port, files = free_port(), tempfile.mkdtemp(prefix="ray")  # sockets need a short path
    options = {
        "ray-client-server-port": port,
        "port": 0,
        "num-cpus": 2,
        "include-dashboard": "false",
        "temp-dir": files,
        "object-store-memory": 100_000_000,
    }
    words = ["start", "--head", "--block", *(f"--{key}={value}" for key, value in options.items())]
    start = f"import sys; from ray.scripts.scripts import main; sys.argv[1:] = {words}; main()"
    script = f'mount -t tmpfs none {hidden} && exec {sys.executable} -c "$0"'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, start],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as head:
        leader = psutil.Process(head.pid)
        try:
            wait_for_port(head, port)
            yield f"ray://127.0.0.1:{port}", leader
        finally:
            family = [leader, *leader.children(recursive=True)]
            for one in family:
                one.terminate()
            _, alive = psutil.wait_procs(family, timeout=20)
            for one in alive:
                one.kill()
    shutil.rmtree(files, ignore_errors=True)


def wait_for_port(head: subprocess.Popen[bytes], port: int) -> None:
    while head.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"ray start ended with {head.returncode}")


def find_workers(leader: psutil.Process) -> list[psutil.Process]:
    """Return the processes of both workers, once Ray has set their titles."""
    found, until = list[psutil.Process](), time.monotonic() + 30
    while len(found) != 2 and time.monotonic() < until:
        found = []
        for one in leader.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # an idle process that Ray ended
                if "RayWorker" in " ".join(one.cmdline()):
                    found.append(one)
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights that processes of this machine learn."""
    return run(tmp_path_factory.mktemp("processes"), 1)


@pytest.mark.slow
@pytest.mark.processes
def test_a_cluster_learns_what_this_machine_learns(cluster, expected, tmp_path: Path) -> None:
    address, _ = cluster
    found = run(tmp_path, address)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.processes
def test_the_tasks_of_killed_workers_are_repeated(cluster, expected, tmp_path: Path) -> None:
    address, leader = cluster
    killed = list[int]()

    def kill_workers(line: str) -> None:
        if line.startswith("round 2 of"):
            for one in find_workers(leader):
                one.send_signal(signal.SIGKILL)
                killed.append(one.pid)

    found = run(tmp_path, address, say=kill_workers)
    assert len(killed) == 2
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.processes
def test_a_cluster_with_another_version_is_refused(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster
    monkeypatch.setattr(ray_workers, "versions", lambda names: dict.fromkeys(names, "0.0.1"))
    with pytest.raises(ConfigError, match=r"this machine 0\.0\.1: install the same version"):
        run(tmp_path, address)


@pytest.mark.slow
@pytest.mark.processes
def test_a_network_that_the_cluster_lacks_is_named_before_the_first_round(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster
    (tmp_path / "network_of_this_machine.py").write_text(
        "from torch import nn\n\n\ndef flat():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"no module 'network_of_this_machine'.* modules of your"):
        run(tmp_path, address, model="network_of_this_machine:flat")


@pytest.mark.slow
def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    address = f"ray://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"'{address}': cannot connect .* ray start --head"):
        run(tmp_path, address)


def test_without_ray_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs the package 'ray': pip install .*\[ray\]"):
        run(tmp_path, "ray://127.0.0.1:1")


@pytest.mark.parametrize("workers", ["-1", "ray://host", "http://host:1", "two"])
def test_other_workers_are_an_error(tmp_path: Path, workers: str) -> None:
    with pytest.raises(ConfigError, match=r"simulate\.workers"):
        load(experiment(tmp_path), {}, [("simulate.workers", workers)])
