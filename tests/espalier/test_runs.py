"""Runs from Python: events, results, interruption, and errors for bad input."""

from __future__ import annotations

import _thread
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import espalier
from coordinator.store import run_lock
from coordinator.store.control_requests import send_request
from espalier import events
from federated.data import loading
from federated.errors import ConfigError, DataError, ExportError, StoreError, Unknown
from federated.method import Method
from federated.methods.fedavg import fedavg
from models import given_objects
from tests.espalier.conftest import Data, Tiny
from tests.support.memory_federation import RUN, Member, digits, run_members
from tests.support.toy_extensions import MEMBERS
from tests.support.user_networks import Recurrent

TWO = espalier.Simulation(agents=2, partition="iid")
SIZES: dict[str, Any] = {
    "train": {"widths": (0.5, 1.0)},
    "assign": {"submodels": {"d0": "w0.5", "d1": "w1"}},
}


def simulate(
    tiny: nn.Module, data: Data, folder: Path, method: Any = "fedavg", **given: Any
) -> espalier.Run:
    given = {"name": "mine", "rounds": 2, **SIZES, **given}
    return espalier.run(method, tiny, data, TWO, runs=folder, **given)


def test_a_run_yields_events_and_ends_with_its_weights_scores_and_history(
    tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    run = simulate(tiny, data, tmp_path)
    seen = list(run)
    counts = Counter(type(event) for event in seen)
    assert (counts[events.RoundStarted], counts[events.UpdateFolded]) == (2, 4)
    assert counts[events.LoopTurned] == 0
    assert seen[-1] == events.RunEnded("over", "the run is over")
    done = run.result()
    assert (done.name, done.rounds, done.folder) == ("mine", 2, tmp_path / "mine")
    assert done.weights["net.first.weight"].shape == (8, 4)
    assert {entry.agent: entry.submodel for entry in done.history[0].entries} == {
        "d0": "w0.5",
        "d1": "w1",
    }
    assert {(s.submodel, s.trained_updates) for s in done.scores} == {("w0.5", 2), ("w1", 2)}
    ended = [event.done for event in seen if isinstance(event, events.RoundEnded)]
    assert [one.round for one in ended] == [past.round for past in done.history] == [1, 2]


def test_a_run_is_sliced_predicted_and_exported(
    tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    done = simulate(tiny, data, tmp_path).result()
    x = data[0][:7]
    small = espalier.slice(done, "w0.5")
    assert torch.equal(small.net.first.weight, done.weights["net.first.weight"][:4])
    logits = espalier.predict(done, x, "w0.5")
    assert np.array_equal(logits, small(torch.from_numpy(x)).detach().numpy())
    assert espalier.predict(done, x.astype(np.float64)).shape == (7, 3)
    made = espalier.export(done, tmp_path / "release", ["w0.5"], int8=False)
    file = tmp_path / "release" / made.submodels[0].variants[0].file.name
    assert np.allclose(espalier.predict(file, x), logits, atol=1e-5)
    merged = espalier.merge(done, [(small, 10)])
    assert torch.equal(merged["net.second.weight"], done.weights["net.second.weight"])
    with pytest.raises(Unknown, match=r"w0\.7.*did you mean"):
        espalier.slice(done, "w0.7")
    assert torch.equal(espalier.slice(done, done.menu[0]).net.first.weight, small.net.first.weight)
    (other,) = espalier.menu(espalier.network(nn.Linear(4, 3), (4,)), (1.0,))
    with pytest.raises(ConfigError, match=r"found .w1 of another one \(Linear, inputs=\(4,\)"):
        espalier.slice(done, other)
    with pytest.raises(DataError, match=r"expected examples of shape \[n, 4\], found \[7, 5\]"):
        espalier.predict(done, np.zeros((7, 5)))
    with pytest.raises(ExportError):
        espalier.predict(tmp_path / "none.onnx", x)


def test_one_thread_learns_what_worker_processes_learn(tmp_path: Path) -> None:
    def train(name: str, **given: Any) -> dict[str, torch.Tensor]:
        env = espalier.Simulation(agents=3, **given)
        run = espalier.run(
            "fedavg", "mlp-small", env=env, runs=tmp_path, name=name, rounds=2, train={"steps": 3}
        )
        return dict(run.result().weights)

    here, there = train("here"), train("there", processes=True, workers=2)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[home], value) for home, value in there.items())


@pytest.mark.parametrize("how", ["close", "raise", "forget"])
def test_an_interrupted_run_resumes_with_the_same_result(
    how: str, tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    whole = simulate(tiny, data, tmp_path, name="whole", rounds=3).result()
    run = simulate(tiny, data, tmp_path, rounds=3)
    if how == "raise":
        with pytest.raises(KeyboardInterrupt):
            interrupt_after(run, 1)
    else:
        pass_rounds(run, 1)
        if how == "close":
            run.close()
            assert list(run) == []
            assert run.result().rounds == 1
        del run
    assert not run_lock.is_held(tmp_path / "mine")
    assert espalier.load_run("mine", runs=tmp_path).rounds == 1
    more = espalier.run("fedavg", tiny, data, runs=tmp_path, name="mine", resume=True)
    numbers = [event.round for event in more if isinstance(event, events.RoundStarted)]
    assert numbers == [2, 3]
    found = more.result().weights
    assert all(torch.equal(found[home], value) for home, value in whole.weights.items())


def interrupt_after(run: espalier.Run, number: int) -> None:
    with run:
        pass_rounds(run, number)
        raise KeyboardInterrupt


def pass_rounds(run: espalier.Run, number: int) -> None:
    """Read events to the end of a round."""
    for event in run:
        if isinstance(event, events.RoundEnded) and event.done.round == number:
            return


def test_a_run_of_another_process_needs_its_module(
    tiny: nn.Module, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(tiny, data, tmp_path, rounds=1).result()
    monkeypatch.setattr(given_objects, "OBJECTS", {})
    monkeypatch.setattr("models.user_networks.given_network.OBJECTS", given_objects.OBJECTS)
    with pytest.raises(ConfigError, match=r"Tiny.*load_run\(\"mine\", model\)"):
        espalier.load_run(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"Tiny.*another structure"):
        espalier.load_run(tmp_path / "mine", nn.Linear(4, 3))
    done = espalier.load_run(tmp_path / "mine", Tiny())
    assert espalier.predict(done, data[0][:2]).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"not in this process.*inputs=\(x, y\)"):
        espalier.export(done, tmp_path / "release")
    more = {"runs": tmp_path, "resume": True, "rounds": 2}
    with pytest.raises(ConfigError, match=r"another structure"):
        espalier.run("fedavg", nn.Linear(4, 3), data, name="mine", **more)
    assert espalier.run("fedavg", Tiny(), data, **more).result().rounds == 2


def test_a_method_of_the_program_needs_no_module(
    tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    def mine() -> Method:
        return fedavg()

    run = simulate(tiny, data, tmp_path, mine, name="", rounds=1)
    assert run.name.startswith("mine_")
    assert run.result().rounds == 1
    assert espalier.load_run(run.folder).method.name.startswith("models.given_objects:mine_")
    named = simulate(tiny, data, tmp_path, fedavg, rounds=1).result()
    assert named.method.name == "federated.methods.fedavg:fedavg"


def bad(kind: type[Exception], words: str, **settings: Any) -> Any:
    return pytest.param(kind, words, settings, id=words)


@pytest.mark.parametrize(
    ("kind", "words", "settings"),
    [
        bad(Unknown, "did you mean fedavg", method="fedav"),
        bad(ConfigError, "method: expected a name.*found 3", method=3),
        bad(DataError, "expected a name.*found a dict", data={"x": 1}),
        bad(DataError, "found a tuple of 3", data=(1, 2, 3)),
        bad(DataError, "expected numbers in x", data=(np.array(["a", "b"]), np.arange(2))),
        bad(DataError, "as many labels in y", data=(np.ones((9, 4)), np.arange(5))),
        bad(ConfigError, "env: expected Simulation", env="fleet"),
        bad(ConfigError, "unknown key 'round'.*rounds", round=3),
        bad(ConfigError, r"unknown key 'widths'.*did you mean train=.\"widths\": ", widths=(1.0,)),
        bad(ConfigError, "rounds: expected a whole number", rounds=0),
        bad(ConfigError, "simulate.agents: expected", env=espalier.Simulation(agents=0)),
        bad(ConfigError, "seeds", env=espalier.Simulation(seeds=(1, 2))),
        bad(ConfigError, "rounds: expected plain numbers", rounds=np.int64(3)),
        bad(ConfigError, "setting 'lrr'; did you mean lr", train={"lrr": 1}),
        bad(ConfigError, "cannot be narrowed", model=Recurrent(), data="digits"),
        bad(ConfigError, "module:function", env=espalier.Fleet(min_agents=1)),
        bad(ConfigError, "processes=False", env=espalier.Simulation(processes=True)),
    ],
)
def test_a_run_that_cannot_begin_says_why_and_leaves_nothing(
    kind: type[Exception], words: str, settings: dict[str, Any], data: Data, tmp_path: Path
) -> None:
    class Local(Tiny):  # which no other process can import
        pass

    chosen = {"method": "fedavg", "model": Local(), "data": data, "env": TWO, **SIZES}
    with pytest.raises(kind, match=words):
        espalier.run(**{**chosen, **settings}, runs=tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_run_that_exists_or_is_missing_is_an_error(
    tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    simulate(tiny, data, tmp_path, rounds=1).result()
    with pytest.raises(StoreError, match=r"mine.*resume=True.*name=.*runs="):
        simulate(tiny, data, tmp_path)
    with pytest.raises(StoreError, match=r"no run 'none'"):
        espalier.load_run("none", runs=tmp_path)
    with pytest.raises(ConfigError, match=r"train.*lr"):
        simulate(tiny, data, tmp_path, resume=True, train={**SIZES["train"], "lr": 0.5})


@pytest.mark.usefixtures("forgotten_extensions")
def test_extensions_are_named_by_module_and_function(tmp_path: Path) -> None:
    run = espalier.run(
        MEMBERS["espalier.methods"],
        f"{MEMBERS['espalier.families']}-large",
        MEMBERS["espalier.data"],
        espalier.Simulation(agents=3, partition="iid"),
        runs=tmp_path,
        rounds=1,
        train={"steps": 2, "widths": (0.5, 1.0)},
        wire={"codec": MEMBERS["espalier.codecs"]},
        robust={"rule": MEMBERS["espalier.rules"], "byzantine": 1},
        observe={"readers": [MEMBERS["espalier.readers"]]},
    )
    done = run.result()
    assert [entry.outcome for entry in done.history[0].entries] == ["folded"] * 3
    assert json.loads((run.folder / "counts.json").read_text())["RoundEnded"] == 1
    trained = espalier.run(
        "fedavg",
        "mlp-small",
        env=espalier.Simulation(agents=2, trainer=MEMBERS["espalier.trainers"]),
        runs=tmp_path,
        rounds=1,
        train={"steps": 2, "lr": 0.5, "norm": "static"},
        evaluate={"devices": False},
    )
    assert {one.steps for one in trained.result().history[0].entries} == {2}


def test_a_request_to_stop_ends_the_events(tiny: nn.Module, data: Data, tmp_path: Path) -> None:
    run = simulate(tiny, data, tmp_path, rounds=10**4)
    pass_rounds(run, 1)
    send_request(run.folder, "stop")
    *_, last = run
    assert isinstance(last, events.RunEnded)
    assert last.phase == "stopped"
    assert 1 <= run.result().rounds < 10**4


def test_ctrl_c_stops_long_training_in_this_process(
    tiny: nn.Module, data: Data, tmp_path: Path
) -> None:
    settings = {"train": {**SIZES["train"], "epochs": 10**6}}
    run = simulate(tiny, data, tmp_path, **settings)
    assert any(isinstance(event, events.RoundStarted) for event in run)
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert run.ended
    assert not list(tmp_path.iterdir()), "no round was finished, so nothing is left to resume"


@pytest.mark.broker
def test_a_fleet_trains_over_a_broker(broker: str, tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    with run_members(members, broker, tmp_path / "agents"):
        run = espalier.run(
            *("fedavg", "mlp-small", "digits", espalier.Fleet(broker=broker, min_agents=2)),
            **{"runs": tmp_path, "name": RUN, "rounds": 1, "train": {"steps": 2}},
        )
        joined = {event.agent for event in run if isinstance(event, events.AgentJoined)}
        assert joined == {"a0", "a1"}
    done = run.result()
    assert {entry.outcome for entry in done.history[0].entries} == {"folded"}
    whole = loading.load_central("digits")
    assert espalier.predict(done, whole.x_held[:3]).shape == (3, 10)


@pytest.mark.broker
def test_ctrl_c_while_a_fleet_is_awaited_stops_the_run(tmp_path: Path) -> None:
    env = espalier.Fleet(broker={"kind": "embedded", "port": 0})
    run = espalier.run("fedavg", "mlp-small", env=env, runs=tmp_path, name="waits")
    assert next(run) == events.AgentsAwaited(0, 2)
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert run.ended
    assert not list(tmp_path.iterdir()), "no round was planned, so nothing is left to resume"
