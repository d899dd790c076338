"""A device without PyTorch trains in a run over a real broker, alone and beside one with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from coordinator.broker.local_addresses import find_free_port
from coordinator.simulate import demo_fleet
from coordinator.simulate.demo_fleet import DEVICES, DemoOptions, run_demo
from coordinator.store import control_requests
from coordinator.store.run_store import Store
from tests.support.paced_rounds import PACED
from tests.support.processes import AGENT, COORDINATOR, Running, Start, wait_for_words
from tests.support.python_without_torch import hide_packages, write_python
from tests.support.waiting import eventually

# an export has a low priority, so a busy machine delays it
PATIENCE = 1500.0
pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(2 * PATIENCE),
]

# not forked from a process that has imported PyTorch
FREE_AGENT = [sys.executable, "-c", "from edge_agent.cli.main import main; main()"]
RUN = ("--method", "fedavg", "--min-agents", "1", "--name", "mixed", "--rounds", "100000")
SMALL = (*("--set", "method.widths=[0.25]"), *("--set", "method.depths=[1]"))
# no device without PyTorch has this file
OWN_NETWORK = """
from torch import nn

def build():
    first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(first, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that cannot import PyTorch, ONNX or the packages of extras."""
    return {"PYTHONPATH": hide_packages(tmp_path)}


def start_run(tmp_path: Path, start: Start, *settings: str) -> tuple[Running, str]:
    """Start a coordinator with its own broker. Return it and the address."""
    port = find_free_port("127.0.0.1", 0)
    given = ["--port", str(port), "--set", "broker.kind=embedded", "--format", "json", *settings]
    process = start(*COORDINATOR, "start", *RUN, *SMALL, *PACED, *given)
    assert wait_for_words(process, tmp_path / "0.err", "agents join with")
    return process, f"127.0.0.1:{port}"


def join(
    start: Start,
    command: list[str],
    broker: str,
    name: str,
    *more: str,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Running:
    shard = ["--data", "digits", "--shard", f"{name[-1]}/2", "--seed", "0"]
    given = ["join", "--broker", broker, "--name", name, *shard, *more]
    return start(*command, *given, variables=variables)


def find_round(folder: Path, agents: set[str]) -> int:
    """Return the last round that folded an update of each of these agents, or else 0."""
    store = Store.open(folder.parent, folder.name, read_only=True)
    try:
        for number in range(store.rounds_done, 0, -1):
            entries = store.read_entries(number)
            if {one.agent for one in entries if one.outcome == "folded"} == agents:
                return number
        return 0
    finally:
        store.close()


def wait_for_round(folder: Path, process: Running, agents: set[str]) -> int:
    def look() -> int:
        assert process.poll() is None, "the run ended"
        return find_round(folder, agents)

    return eventually(look, PATIENCE)


def test_an_agent_without_pytorch_trains_beside_one_with_it(
    tmp_path: Path, start: Start, without_torch: dict[str, str]
) -> None:
    """It waits for the export of a network of one's own, then trains alone; the other joins later.
    Both also calibrate and score.
    """
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    own = ("--model", "own_network:build")
    process, broker = start_run(tmp_path, start, *own)
    folder = tmp_path / "runs" / "mixed"
    join(start, FREE_AGENT, broker, "a0", variables=without_torch)
    wait_for_round(folder, process, {"a0"})
    join(start, AGENT, broker, "a1", *own)
    number = wait_for_round(folder, process, {"a0", "a1"})
    control_requests.send_request(folder, "stop")
    process.communicate(timeout=PATIENCE)
    store = Store.open(folder.parent, folder.name, read_only=True)
    profiles, decisions = store.agents.read_profiles(), store.agents.read_decisions("a0")
    views = {score.view for score in store.read_scores(number)}
    counts = {one.agent: (one.samples, one.steps) for one in store.read_entries(number)}
    store.close()
    assert profiles["a0"].runtime.startswith("onnxruntime ")
    assert profiles["a0"].timings == ()
    assert profiles["a1"].runtime.startswith("torch ")
    trained = [one.reason for _, one in decisions if one.asked]
    assert trained[0].startswith("the smallest that it can train, since its speed is not known")
    assert not trained[-1].startswith("the smallest that it can train"), "predicted from rounds"
    assert "devices" in views
    # one update counts a device's examples, and an epoch of batches of 32
    for agent in ("a0", "a1"):
        samples, steps = counts[agent]
        assert samples == profiles[agent].data.examples
        assert steps == -(-samples // 32)


def test_an_operator_without_translation_is_named_and_the_round_goes_on(
    tmp_path: Path, start: Start, without_torch: dict[str, str]
) -> None:
    own = ("--model", "tests.support.user_networks:Growing")
    process, broker = start_run(tmp_path, start, *own)
    folder, errors = tmp_path / "runs" / "mixed", tmp_path / "0.err"
    free = join(start, FREE_AGENT, broker, "a0", variables=without_torch)
    words = "devices without PyTorch cannot train it"
    eventually(lambda: words in errors.read_text(), PATIENCE)
    assert "the operator aten.convolution_backward" in errors.read_text()
    join(start, AGENT, broker, "a1", *own)
    wait_for_round(folder, process, {"a1"})
    assert free.poll() is None, "it stays, since another submodel may be exported"
    store = Store.open(folder.parent, folder.name, read_only=True)
    reason = store.agents.read_decisions("a0")[-1][1].reason
    store.close()
    assert "it has no training graphs: " in reason
    assert "convolution_backward" in reason


@pytest.mark.usefixtures("forked_commands")
def test_the_demo_reaches_its_accuracy_with_four_devices_without_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are those of `.ci/check_demo.py`, for one with PyTorch. Devices that did not
    measure their speed begin with the smallest submodel, which is therefore the only one: the
    export of others would slow down all devices of this machine.
    """
    monkeypatch.setattr(demo_fleet, "SILENCE", PATIENCE)
    monkeypatch.setenv("ESPALIER_METHOD__WIDTHS", "[0.5]")
    monkeypatch.setenv("ESPALIER_METHOD__DEPTHS", "[2]")
    program, said = write_python(tmp_path), list[str]()
    options = DemoOptions(
        limited=False, kind="embedded", keep=tmp_path / "demo", python=str(program)
    )
    done = run_demo(options, said.append)
    for device in DEVICES:
        assert any(f"{device.name}: " in line and "with onnxruntime " in line for line in said)
    assert done["accuracy"] >= 0.93
    assert done["worst_accuracy"] >= 0.88
