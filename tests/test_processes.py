"""The commands as a user runs them, in their own processes, over real brokers."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.broker.local_addresses import find_free_port
from coordinator.store.run_store import Store
from edge_agent.access.agent_name import derive_name
from federated.data import loading
from tests.support.processes import (
    AGENT,
    COORDINATOR,
    WITHOUT_TORCH,
    Running,
    Start,
    result,
    wait_for_words,
)
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.broker]
QUICK = [
    "--set",
    "method.widths=[0.25,0.5]",
    "--set",
    "method.depths=[1]",
    "--set",
    "train.epochs=1",
    "--set",
    "evaluate.devices=false",
    "--set",
    "fleet.wait=90",
]


def agent(start: Start, broker: str, index: int, *more: str) -> Running:
    shard = ["--data", "digits", "--shard", f"{index}/2", "--seed", "0"]
    return start(
        *AGENT, "join", "--broker", broker, "--name", f"a{index}", *shard, "--format", "json", *more
    )


def test_a_coordinator_that_starts_its_own_broker_and_two_agents(
    tmp_path: Path, start: Start
) -> None:
    """The broker is the embedded one, and ends with the coordinator. tests/test_units.py starts
    mosquitto in the same way, where it is installed.
    """
    port = find_free_port("127.0.0.1", 0)
    where = ["--set", "broker.kind=embedded", "--port", str(port)]
    coordinator = start(
        *COORDINATOR,
        "start",
        "--method",
        "fedfa",
        "--model",
        "mlp-small",
        "--min-agents",
        "2",
        "--rounds",
        "2",
        *where,
        *QUICK,
        "--format",
        "json",
    )
    assert wait_for_words(coordinator, tmp_path / "0.err", "agents join with")
    wait = ["--wait", "60"]
    agents = [
        start(*AGENT, "join", "--broker", f"127.0.0.1:{port}", "--format", "json", *wait)
        for _ in range(2)
    ]
    told = result(coordinator)
    assert told["rounds"] == 2
    names = {a["id"] for a in told["agents"]}
    assert len(names) == 2
    # other tests may run agents on this machine at the same time
    numbered = re.compile(re.escape(derive_name()) + r"(-\d+)?")
    assert all(numbered.fullmatch(name) for name in names)
    assert 0 < told["accuracy"] <= 1
    for process in agents:
        left = result(process)
        assert left["reason"] == "the run is over"
        assert left["updates"] == 2
    history = Store.open(tmp_path / "runs", told["run"], read_only=True)
    assert [row[0] for row in history.read_history()] == [1, 2]
    history.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(("127.0.0.1", port), 1)


EXPERIMENT = """
rounds = 2
[method]
name = "fedfa"
widths = [0.25, 0.5]
depths = [1]
[train]
epochs = 1
steps = 4
batch = 8
[assign.submodels]
d0 = "w0.5-d1.1.1"
d1 = "w0.25-d1.1.1"
[fleet]
min_agents = 2
wait = 90
[simulate]
agents = 2
partition = "dirichlet:0.5"
attackers = 0.5  # for this seed it is d1
attack = "backdoor:3"
"""


@pytest.mark.slow
def test_one_file_gives_the_same_model_in_simulation_and_on_a_fleet(
    tmp_path: Path, start: Start, broker: str
) -> None:
    """With the same seed, shards and submodels, the transport and the worker processes do not
    affect the weights. One of the devices is malicious.
    """
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    simulated = result(start(*COORDINATOR, "simulate", "small.toml", "--format", "json"))
    assert simulated["seeds"] == [0]
    coordinator = start(
        *COORDINATOR,
        "start",
        "--config",
        "small.toml",
        "--broker",
        broker,
        "--name",
        "fleet",
        "--format",
        "json",
    )
    # one thread, as there: sums of floats depend on how many add
    shard = ["--partition", "dirichlet:0.5", "--seed", "0", "--limit-cpus", "1"]
    join = [*AGENT, "join", "--broker", broker, "--data", "digits", "--format", "json"]
    attacks = [[], ["--attack", "backdoor:3"]]
    agents = [
        start(*join, "--name", f"d{i}", "--shard", f"{i}/2", *shard, *attacks[i]) for i in range(2)
    ]
    told = result(coordinator)
    assert told["accuracy"] == pytest.approx(simulated["summary"]["global"]["mean"], abs=1e-3)
    for process in agents:
        result(process)
    here = load_file(tmp_path / "runs" / "small-seed0" / "round-000002.safetensors")
    there = load_file(tmp_path / "runs" / "fleet" / "round-000002.safetensors")
    assert here.keys() == there.keys()
    assert max(float(np.abs(here[home] - there[home]).max()) for home in there) <= 1e-6


def test_ctrl_c_offers_to_resume_only_a_run_that_is_stored(
    tmp_path: Path, start: Start, broker: str
) -> None:
    """A run without a round is deleted, since nothing of it can be resumed."""
    run = ["--broker", broker, "--name", "r", "--min-agents", "1", "--rounds", "500", *QUICK]
    for number, waits in enumerate((True, False)):
        words = [*COORDINATOR, "start", *run, "--format", "json"]
        coordinator, log = start(*words), tmp_path / f"{number}.err"
        assert wait_for_words(coordinator, log, "stored in")
        if not waits:
            agent(start, broker, 0)
            assert wait_for_words(coordinator, log, "round 2 of 500")
        coordinator.send_signal(signal.SIGINT)
        assert coordinator.wait(PATIENCE) == 130
        assert (tmp_path / "runs" / "r").exists() != waits
        hint = "" if waits else "; resume with: coordinator start --name r --resume"
        assert log.read_text().endswith(f"interrupted{hint}\n")


@pytest.mark.slow
def test_an_interrupted_agent_leaves_cleanly_and_the_run_continues(
    tmp_path: Path, start: Start, broker: str
) -> None:
    run = [
        "--name",
        "left",
        "--rounds",
        "4",
        "--min-agents",
        "2",
        "--broker",
        broker,
        *QUICK,
        "--set",
        "train.epochs=3",
    ]
    coordinator = start(
        *COORDINATOR, "start", *run, "--set", "fleet.deadline=20", "--format", "json"
    )
    agents = [agent(start, broker, i) for i in range(2)]
    assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of 4")
    agents[1].send_signal(signal.SIGINT)
    assert result(agents[1])["reason"] == "stopped"
    assert wait_for_words(coordinator, tmp_path / "0.err", "waiting: 1 of 2 agents")
    agents.append(agent(start, broker, 1))
    assert result(coordinator)["rounds"] == 4
    assert result(agents[0])["reason"] == "the run is over"
    assert result(agents[2])["reason"] == "the run is over"


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path: Path, start: Start, broker: str) -> None:
    """The agent reports the death of its training process, and starts another."""
    run = [
        "--name",
        "worker",
        "--rounds",
        "4",
        "--min-agents",
        "2",
        "--broker",
        broker,
        *QUICK,
        "--set",
        "train.epochs=4",
    ]
    coordinator = start(*COORDINATOR, "start", *run, "--format", "json")
    agents = [agent(start, broker, i) for i in range(2)]
    assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of 4")
    children = Path(f"/proc/{agents[0].pid}/task/{agents[0].pid}/children")
    os.kill(int(eventually(lambda: children.read_text().split())[0]), signal.SIGKILL)
    assert result(coordinator)["rounds"] == 4
    assert result(agents[0])["reason"] == "the run is over"


@pytest.mark.slow
def test_export_and_infer_without_torch(tmp_path: Path, start: Start, broker: str) -> None:
    run = ["--name", "shipped", "--rounds", "1", "--min-agents", "2", "--broker", broker, *QUICK]
    small = ["--model", "mlp-small"]
    coordinator = start(*COORDINATOR, "start", *run, *small, "--format", "json")
    for process in [agent(start, broker, i) for i in range(2)]:
        result(process)
    result(coordinator)
    exported = result(start(*COORDINATOR, "export", "shipped", "--out", "made", "--format", "json"))
    assert {e["submodel"] for e in exported["submodels"]} == {"w0.25-d1", "w0.5-d1"}
    assert all(e["variants"][0]["max_abs_diff"] <= 1e-5 for e in exported["submodels"])
    released = result(
        start(
            *COORDINATOR,
            "release",
            "shipped",
            "--bundle",
            "made",
            "--broker",
            broker,
            "--format",
            "json",
        )
    )
    assert released["versions"][released["stable"]]["round"] == 1
    np.save(tmp_path / "x.npy", loading.load_central("digits").x_held[:5])
    fetched = result(
        start(
            *WITHOUT_TORCH, "infer", "--broker", broker, "--name", "a0", "x.npy", "--format", "json"
        )
    )
    assert len(fetched["answers"]) == 5
    path = f"made/{fetched['submodel']}.onnx"
    local = result(start(*WITHOUT_TORCH, "infer", "--model", path, "x.npy", "--format", "json"))
    assert local["answers"] == fetched["answers"]
    wrong = start(*WITHOUT_TORCH, "infer", "--model", path, "--sha256", "0" * 64, "x.npy")
    wrong.communicate(timeout=PATIENCE)
    assert wrong.returncode == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "found"),
    [
        (
            "fedfa",
            [
                *("model.name=resnet-small", "method.choice=zico"),
                *("method.depths=[1,2]", "method.widths=[0.5,1.0]"),
            ],
            "zico",
        ),
        ("recipfl", ["model.name=mlp-small"], "histogram"),
    ],
)
def test_devices_are_surveyed_over_the_broker(
    tmp_path: Path, start: Start, broker: str, method: str, settings: list[str], found: str
) -> None:
    """The method's survey is in the dry run and reaches the coordinator, and the run completes."""
    more = [
        word for one in (*settings, "train.steps=2", "fleet.wait=90") for word in ("--set", one)
    ]
    run = [
        "--method",
        method,
        "--name",
        "asked",
        "--rounds",
        "1",
        "--min-agents",
        "2",
        "--broker",
        broker,
        *more,
    ]
    coordinator = start(*COORDINATOR, "start", *run, "--format", "json")
    shown = result(
        start(
            *AGENT,
            "join",
            "--dry-run",
            "--name",
            "shy",
            "--broker",
            broker,
            "--data",
            "digits",
            "--shard",
            "0/2",
            "--format",
            "json",
        )
    )
    survey = shown["profile"]["survey"]
    assert survey.keys() == {found}
    assert len(survey[found]) == (4 if found == "zico" else 10)
    if found == "histogram":
        assert sum(survey[found]) == pytest.approx(1)
    agents = [agent(start, broker, i) for i in range(2)]
    told = result(coordinator)
    assert told["rounds"] == 1
    for process in agents:
        assert result(process)["updates"] == 1
    store = Store.open(tmp_path / "runs", "asked", read_only=True)
    assert {e.outcome for e in store.read_entries(1)} == {"folded"}
    store.close()
