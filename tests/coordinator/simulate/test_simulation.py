"""Results, resuming, views and configuration errors of simulations. `test_every_method` compares
them with a fleet.
"""

from __future__ import annotations

import csv
import json
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file, save_file

from coordinator.cli.main import main
from coordinator.observe.event_readers.terminal_output import LinePrinter
from coordinator.observe.round_records import Score
from coordinator.run.config_sources import ConfigSources
from coordinator.run.runner import complete_card
from coordinator.settings.config import load
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.results import find_target_round
from coordinator.simulate.simulation import simulate, simulate_run
from coordinator.simulate.worker_processes import ProcessPool
from coordinator.simulate.worker_selection import GpuThreads
from coordinator.store.run_folders import list_runs
from coordinator.store.run_store import Store
from federated.errors import ConfigError, DataError, FleetError, StoreError, Unknown
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.wire.messages import Run
from models.cost import cost
from models.named_network import network
from models.submodel_building import full

EXPERIMENT = """
rounds = 2
[model]
name = "mlp-small"
[method]
name = "fedfa"
widths = [0.25, 0.5]
depths = [1, 2]
[train]
epochs = 1
batch = 16
[assign.submodels]
"d0" = "w0.25-d1"
"d*" = "w0.5-d2"
[simulate]
agents = 3
partition = "dirichlet:0.5"
workers = 2
"""


def experiment(folder: Path, text: str = EXPERIMENT) -> Path:
    file = folder / "small.toml"
    file.write_text(text)
    return file


def run(
    folder: Path,
    *settings: str,
    resume: bool = False,
    text: str = EXPERIMENT,
    said: list[str] | None = None,
):
    say = (said if said is not None else []).append
    return simulate(
        ConfigSources(experiment(folder, text), settings=settings),
        folder / "runs",
        folder / "out",
        resume=resume,
        say=say,
    )


def run_here(folder: Path, *settings: str, said: list[str] | None = None) -> None:
    """Run the experiment in this thread, without results."""
    simulate_run(
        ConfigSources(experiment(folder), settings=("name=small-seed0", *settings)),
        folder / "runs",
        threading.Event(),
        LinePrinter((said if said is not None else []).append).read,
        resume=False,
    )


def test_results_of_another_experiment_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "small").mkdir(parents=True)
    (tmp_path / "results" / "small" / "summary.json").write_text("{}")
    with pytest.raises(StoreError, match=r"results/small has the results .*--set name=NAME"):
        simulate(ConfigSources(experiment(tmp_path)), tmp_path / "runs", None, say=print)


def weights(folder: Path, seed: int = 0, rounds: int = 2) -> dict[str, torch.Tensor]:
    return load_file(folder / "runs" / f"small-seed{seed}" / f"round-{rounds:06d}.safetensors")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory):
    """Run two seeds with every view, once for all tests that only read the results."""
    folder = tmp_path_factory.mktemp("simulated")
    said: list[str] = []
    views = ("evaluate.local=true", "evaluate.per_class=true", "evaluate.between=false")
    found = run(folder, "simulate.seeds=[0,1]", *views, said=said)
    return folder, found, said


@pytest.mark.slow
def test_results_name_their_config_seed_commit_and_versions(done):
    folder, _, _ = done
    one = json.loads((folder / "out" / "seed1.json").read_text())
    assert one["seed"] == one["config"]["seed"] == 1
    assert one["config"]["simulate"]["partition"] == "dirichlet:0.5"
    assert one["versions"]["torch"] == torch.__version__
    assert [r["round"] for r in one["rounds"]] == [1, 2]
    assert {name: s["devices"] for s in one["submodels"] if (name := s["name"])} == {
        "w0.25-d1": 1,
        "w0.25-d2": 0,
        "w0.5-d1": 0,
        "w0.5-d2": 2,
    }


def test_results_count_multiply_adds(done):
    """Three devices train one epoch in each of two rounds. Each counts its examples times the
    multiply-adds of its submodel.
    """
    folder, _, _ = done
    one = json.loads((folder / "out" / "seed0.json").read_text())
    macs = {s["name"]: s["macs"] for s in one["submodels"]}
    with closing(Store.open(folder / "runs", "small-seed0", read_only=True)) as store:
        passed = sum(macs[entry.submodel] * entry.samples for entry in store.read_entries(1))
    effort = {key: value for key, value in one["effort"].items() if value is not None}
    assert effort == pytest.approx({"mean": passed / 3, "mace": passed, "total": 2 * passed})
    assert (
        one["effort"]["tmac"]
        is one["effort"]["target"]
        is one["effort"]["rounds_to_target"]
        is None
    )


@pytest.mark.slow
def test_tmac_counts_the_multiply_adds_up_to_the_target(tmp_path: Path):
    """MOON runs one network forward in its first round and three in its second. Any accuracy
    reaches 0.01, and none reaches 1 in two rounds.
    """
    given = ("method.name=moon", "method.depths=[2]", "train.steps=0", "assign.submodels={}")

    def simulate_with(*more: str) -> tuple[dict, str]:
        said: list[str] = []
        run(tmp_path, *given, *more, resume=bool(more), said=said)
        found = json.loads((tmp_path / "out" / "seed0.json").read_text())
        return found, "\n".join(line for line in said if "target accuracy" in line)

    found, line = simulate_with()
    assert not line
    macs = {s["name"]: s["macs"] for s in found["submodels"]}
    with closing(Store.open(tmp_path / "runs", "small-seed0", read_only=True)) as store:
        first = sum(macs[entry.submodel] * entry.samples for entry in store.read_entries(1))
    assert found["effort"]["total"] == pytest.approx(4 * first)
    found, line = simulate_with("simulate.target=0.01")
    assert (found["effort"]["target"], found["effort"]["rounds_to_target"]) == (0.01, 1)
    assert found["effort"]["tmac"] == pytest.approx(first)
    assert found["effort"]["total"] == pytest.approx(4 * first)
    assert "round 1 reached the target accuracy 0.01" in line
    assert "without calibration and evaluation" in line
    found, line = simulate_with("simulate.target=1")
    assert (
        found["effort"]["target"],
        found["effort"]["rounds_to_target"],
        found["effort"]["tmac"],
    ) == (1.0, None, None)
    assert "no evaluated round reached the target accuracy 1" in line
    found, line = simulate_with("target_accuracy=0.01")
    assert (found["effort"]["target"], found["effort"]["rounds_to_target"]) == (0.01, 1), (
        "the default is the target that ends the run"
    )


def test_the_largest_evaluated_submodel_decides_when_the_target_is_reached():
    """Scores of a smaller submodel or of one device do not count. Round 2 evaluated nothing. A
    later score below the target changes nothing.
    """
    net = network("mlp", (4,), 3)
    menu = tuple(replace(full(net), width=width) for width in (0.5, 1.0))

    def score(number: int, index: int, accuracy: float, agent: str = "") -> tuple[int, Score]:
        return number, Score(menu[index].name, "central", accuracy, 1.0, 10, agent)

    scores = [
        score(1, 0, 0.9),
        score(1, 1, 0.4),
        score(3, 1, 0.5, "d0"),
        score(3, 1, 0.3),
        score(4, 0, 0.1),
        score(4, 1, 0.5),
        score(5, 1, 0.2),
    ]
    assert find_target_round(scores, menu, 0.5) == 4
    assert find_target_round(scores, menu, 0.4) == 1
    assert find_target_round(scores, menu, 0.6) is None
    assert find_target_round(scores, menu, 0.0) is None


def test_every_score_is_a_line_of_csv(done):
    folder, _, _ = done
    with (folder / "out" / "seed0.csv").open() as file:
        rows = list(csv.DictReader(file))
    views = {(row["view"], bool(row["agent"])) for row in rows}
    assert views == {
        ("central", False),
        *(
            (view, own)
            for view in ("devices", "labels", "before", "after")
            for own in (True, False)
        ),
    }
    trained = {
        (row["agent"], row["submodel"]) for row in rows if row["view"] == "after" and row["agent"]
    }
    assert trained == {("d0", "w0.25-d1"), ("d1", "w0.5-d2"), ("d2", "w0.5-d2")}
    assert all(0 <= float(row["macro_f1"]) <= 1 for row in rows)


def test_the_summary_has_the_views_of_the_papers(done):
    """After two rounds the mean may exceed the global accuracy; the worst is always the least."""
    _, found, said = done
    for seed in ("0", "1"):
        one = found["per_seed"][seed]
        assert {
            "global",
            "worst",
            "mean",
            "local",
            "before",
            "after",
            "strong",
            "weak",
            "macro_f1",
            "majority_f1",
        } <= one.keys()
        assert one["worst"] <= min(one["mean"], one["global"])
    both = [found["per_seed"][seed]["global"] for seed in ("0", "1")]
    assert found["summary"]["global"]["mean"] == pytest.approx(sum(both) / 2)
    assert found["summary"]["global"]["deviation"] == pytest.approx(abs(both[0] - both[1]) / 2**0.5)
    assert any(line.startswith("2 seeds: global") for line in said)
    assert any("s left" in line for line in said)


def test_pictures_show_more_than_one_colour(done):
    folder, _, _ = done
    for name in ("accuracy.png", "seed0-partition.png", "seed1-partition.png"):
        with Image.open(folder / "out" / name) as image:
            assert min(image.size) > 200
            assert len(image.convert("RGB").getcolors(maxcolors=10**6)) > 50


def test_seeds_differ_in_partition_and_weights(done):
    folder, _, _ = done
    first, second = weights(folder), weights(folder, seed=1)
    assert not torch.equal(first["stem.weight"], second["stem.weight"])
    texts = [(folder / "out" / f"seed{seed}-partition.json").read_text() for seed in (0, 1)]
    assert texts[0] != texts[1]


@pytest.mark.slow
def test_a_resumed_simulation_is_equal_bit_for_bit(done, tmp_path: Path):
    """Two single rounds equal two at once. A finished simulation does not run again, and another
    experiment is refused.
    """
    folder, _, _ = done
    views = ("evaluate.local=true", "evaluate.per_class=true", "evaluate.every=1")
    common = (*views, "evaluate.examples=20")
    run(tmp_path, *common, "rounds=1")
    with pytest.raises(StoreError, match="already exist: small-seed0"):
        run(tmp_path, *common)
    left = tmp_path / "runs" / "small-seed0" / "spool" / "devices" / "d0" / "half.weights"
    left.parent.mkdir(parents=True)
    left.touch()  # as a killed simulation leaves it
    run(tmp_path, *common, resume=True)
    assert not list((tmp_path / "runs" / "small-seed0" / "spool").iterdir())
    found, expected = weights(tmp_path), weights(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    said: list[str] = []
    run(tmp_path, *common, resume=True, said=said)
    assert not any(line.startswith("round ") for line in said)
    with pytest.raises(
        ConfigError,
        match=r"other settings: simulate.partition: expected 'dirichlet:0.5', found 'iid'",
    ):
        run(tmp_path, *common, "simulate.partition=iid", resume=True)


class Killed(BaseException):
    """An error that ends a simulation between two rounds."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how"), [("scaffold", "stopped"), ("moon", "finished"), ("flexifed", "finished")]
)
def test_memories_of_devices_are_resumed_bit_for_bit(tmp_path: Path, method: str, how: str):
    """Devices keep variates, earlier networks and layers of their own, and take part in some rounds
    only. Scores are equal, too.
    """
    text = (
        EXPERIMENT.replace("fedfa", method)
        .replace("batch = 16", "steps = 2\nbatch = 16")
        .replace("agents = 3", "agents = 4")
    )
    own = {"scaffold": [], "moon": [], "flexifed": ["method.strategy=basic"]}[method]
    quick = ["evaluate.examples=20", "simulate.workers=1"]
    common = [*own, *quick, "evaluate.every=1", "fleet.fraction=0.5"]
    whole, split = tmp_path / "whole", tmp_path / "split"
    whole.mkdir()
    split.mkdir()
    run(whole, *common, "rounds=4", text=text)

    def kill(line: str) -> None:
        if line.startswith("round 2"):
            raise Killed

    if how == "finished":
        run(split, *common, "rounds=2", text=text)
    else:
        with pytest.raises(Killed):
            simulate(
                ConfigSources(experiment(split, text), settings=[*common, "rounds=4"]),
                split / "runs",
                split / "out",
                say=kill,
            )
    run(split, *common, "rounds=4", text=text, resume=True)
    expected, found = weights(whole, rounds=4), weights(split, rounds=4)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    tables = [(folder / "out" / "seed0.csv").read_text() for folder in (whole, split)]
    assert tables[0] == tables[1]


def test_devices_choose_a_submodel_by_their_data_within_a_budget(tmp_path: Path):
    """Each device scores the whole menu when it joins. Without a budget all would choose the
    largest.
    """
    given = (
        "method.choice=zico",
        "train.steps=1",
        "rounds=1",
        "evaluate.devices=false",
    )
    text = EXPERIMENT[: EXPERIMENT.index("[assign")] + EXPERIMENT[EXPERIMENT.index("[simulate]") :]
    said: list[str] = []
    run(tmp_path, *given, "method.mac_budget=0.2", "simulate.target=0.5", text=text, said=said)
    one = json.loads((tmp_path / "out" / "seed0.json").read_text())
    assert one["effort"] == {}
    assert any("no TMAC" in line and "train.steps" in line for line in said)
    macs = {s["name"]: s["macs"] for s in one["submodels"]}
    whole = cost(full(network("mlp-small", (1, 8, 8), 10))).macs
    assert {macs[name] for name in one["assigned"].values()} <= {
        m for m in macs.values() if m <= 0.2 * whole
    }
    with pytest.raises(ConfigError, match="mac_budget"):
        run(tmp_path, *given, "method.mac_budget=5", "name=other", text=text)


def test_a_stopped_simulation_surveys_no_device(tmp_path: Path):
    config = load(experiment(tmp_path), {}, [("simulate.workers", 1)])
    source = DataSource.from_config(config)
    chosen, card = find_method("fedfa"), source.device(0).card()
    net = network("preresnet", card.inputs, card.outputs, card)
    settings = configure(chosen, {"choice": "zico", "widths": (0.5,), "depths": (2,)})
    asked = complete_card(Run("r", "fedfa", "preresnet", net, (), 8, "s"), chosen, settings)
    workers = ProcessPool(source, config, 1)
    try:
        assert [found.keys() for found in workers.survey(2, asked)] == [{"zico"}, {"zico"}]
        workers.stop()
        assert list(workers.survey(2, asked)) == [{}, {}]
    finally:
        workers.close()


def test_threads_learn_what_processes_learn(done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Threads serve GPUs, but can also compute on processors."""
    folder, _, _ = done
    monkeypatch.setattr(
        "coordinator.simulate.simulation.open_workers",
        lambda source, config: GpuThreads(source, config, 2),
    )
    run(tmp_path)
    expected, found = weights(folder), weights(tmp_path)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_a_simulation_starts_from_a_checkpoint(done, tmp_path: Path):
    """At a tiny learning rate the weights stay those of the checkpoint."""
    folder, _, _ = done
    path = folder / "runs" / "small-seed0" / "round-000002.safetensors"
    run_here(
        tmp_path,
        f"model.init={path}",
        "rounds=1",
        "train.lr=1e-12",
        "method.name=fedavg",
        "method.norm=static",
    )
    expected, found = load_file(path), weights(tmp_path, rounds=1)
    for name in (n for n in expected if not n.startswith("stats/")):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7)


def invalid_settings(folder: Path) -> list[tuple[tuple[str, ...], type[Exception], str]]:
    other = folder / "other.safetensors"
    save_file({"stem.weight": torch.zeros(3)}, other)
    return [
        (
            ("method.name=fedavg", "robust.rule=krum", "robust.byzantine=2"),
            ConfigError,
            "simulate.agents of at least 7, found 3",
        ),
        (("robust.rule=kurm",), Unknown, "unknown robust rule 'kurm'; did you mean krum"),
        (("simulate.agent=3",), ConfigError, r"simulate: .*agent"),
        (("model.name=vit-s",), ConfigError, "8 x 8 pixels"),
        (("model.name=transformer",), ConfigError, "transformer"),
        (("simulate.agents=2000", "simulate.partition=iid"), DataError, "2000 agents"),
        (("simulate.partition=dirichle:1",), Unknown, "dirichlet"),
        ((f"model.init={other}",), ConfigError, "no tensor norm.weight"),
        (("model.init=absent.safetensors",), ConfigError, "absent.safetensors"),
        (('assign.submodels={"d*" = "w0.5-d9"}',), ConfigError, "w0.5-d2"),
        (("data.name=agents",), ConfigError, "simulation"),
        (("simulate.device=cuda",), ConfigError, "CUDA"),
        (("simulate.trainer=pytroch",), Unknown, "unknown trainer 'pytroch'; did you mean pytorch"),
        (("simulate.agents=0",), ConfigError, "simulate.agents"),
        (
            ("simulate.seeds=[0,-1]",),
            ConfigError,
            r"simulate.seeds\[1\]: expected a whole number .* found -1",
        ),
        (("simulate.seeds=[3,3]",), ConfigError, "each seed once, found 3, 3"),
        (
            ("agents=3",),
            ConfigError,
            r"unknown key 'agents'.*did you mean evaluate=.* or simulate=\{\"agents\": \.\.\.\}",
        ),
        (("fleet.lr=0.1",), ConfigError, r"unknown key 'lr'.*did you mean train.lr"),
    ]


@pytest.mark.parametrize("index", range(18))
def test_configuration_errors_are_raised_before_the_first_output(index: int, tmp_path: Path):
    settings, error, words = invalid_settings(tmp_path)[index]
    if settings == ("simulate.device=cuda",) and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    said = list[str]()
    with pytest.raises(error, match=words):
        run(tmp_path, *settings, said=said)
    assert list_runs(tmp_path / "runs") == [], "a failed start leaves nothing behind"
    assert not any(line.startswith("run '") for line in said)


RULE = """
from federated.engine.aggregate import Total, fold
from federated.engine.robust.rule import Rule

SEEN = []

def first(kept, tensors, f):
    "Return the update of the first agent by name."
    SEEN.append(sorted(key[0] for key in kept.counting))
    total, chosen = Total(), min(kept.counting)
    fold(total, kept.parts(chosen), chosen)
    return total

FIRST = Rule("first", "the update of the first agent", "submodel", lambda f: 1, False, first)
"""


def test_a_rule_from_a_file_of_the_user_combines_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The rule sees three devices in both rounds and takes d0, which trains 16 of 64 channels. The
    other 48 do not change, although d1 and d2 train 32.
    """
    (tmp_path / "toy_first.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run_here(
        tmp_path, "method.name=fedavg", "robust.rule=toy_first:FIRST", "evaluate.devices=false"
    )
    assert sys.modules["toy_first"].SEEN == [["d0", "d1", "d2"]] * 2
    one, two = (weights(tmp_path, rounds=round) for round in (1, 2))
    changed = (one["stem.weight"] != two["stem.weight"]).any(1)
    assert changed.tolist() == [True] * 16 + [False] * 48


def test_a_run_ends_if_no_device_can_train(tmp_path: Path):
    """At this learning rate the loss overflows on every device. The run ends with the reason and
    leaves no thread behind.
    """
    before = threading.active_count()
    with pytest.raises(Exception, match="no agent can train even the smallest"):
        run(
            tmp_path,
            "train.lr=1e30",
            "method.widths=[0.25]",
            "method.depths=[1]",
            "assign.submodels={}",
            "train.epochs=5",
            "train.clip=0.0",
        )
    assert threading.active_count() <= before + 1


def test_a_simulation_without_any_update_is_an_error(tmp_path: Path):
    """The loss overflows on every device, and one round tries no smaller submodel."""
    settings = ("train.lr=1e30", "train.epochs=5", "train.clip=0.0", "rounds=1")
    with pytest.raises(FleetError, match="no update of a device was accepted in 1 round"):
        run(tmp_path, *settings)


def test_a_run_ends_if_a_device_is_refused(tmp_path: Path):
    """The toy trainer runs no hooks, and no other device will come."""
    trainer = "simulate.trainer=tests.support.toy_trainer:open_adding"
    with pytest.raises(FleetError, match=r"the run cannot use d[012]: .*requires .*hook:moon"):
        run(tmp_path, "method.name=moon", trainer)


def test_a_deadline_does_not_close_a_simulated_round(tmp_path: Path):
    """Devices wait for workers on this machine, so its clock must not make them late."""
    said: list[str] = []
    run_here(tmp_path, "fleet.deadline=0.01", "rounds=1", said=said)
    assert any("3 of 3 updates" in line for line in said)


def test_an_existing_run_is_refused_before_another_seed_runs(done):
    folder, _, _ = done
    said: list[str] = []
    with pytest.raises(StoreError, match=r"small-seed1.*name=NAME"):
        run(folder, "simulate.seeds=[7,1]", said=said)
    assert not said


def test_unused_pins_and_an_invalid_folder_are_reported(
    tmp_path: Path,
):
    """Such pins may be meant for a fleet with the same file."""
    said: list[str] = []
    (tmp_path / "file").touch()
    pins = 'assign.submodels={"pi*" = "w0.25-d1"}'
    with pytest.raises(StoreError, match=r"run 'small-seed0' in .*file/runs"):
        simulate(
            ConfigSources(experiment(tmp_path), settings=[pins]),
            tmp_path / "file" / "runs",
            tmp_path / "out",
            say=said.append,
        )
    (tmp_path / "out").touch()
    with pytest.raises(ConfigError, match=r"results to .*out: a file is in place .*--out"):
        run(tmp_path)
    assert len(said) == 1
    assert "'pi*' matches none of the 3 devices" in said[0]


@pytest.mark.slow
def test_a_mechanism_without_effect_is_reported_on_standard_error(tmp_path: Path) -> None:
    """`coordinator simulate` names the remedy, and does not warn about other settings."""
    warnings = {}
    for scaling in ("none", "l2"):
        words = [
            "simulate",
            str(experiment(tmp_path)),
            "--out",
            str(tmp_path / scaling),
            "--runs",
            str(tmp_path / f"runs-{scaling}"),
        ]
        done = CliRunner().invoke(
            main,
            [
                *words,
                "--set",
                f"method.scaling={scaling}",
                "--set",
                "rounds=1",
                "--set",
                "train.steps=1",
            ],
        )
        assert done.exit_code == 0, done.output
        warnings[scaling] = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings["none"]) == 1
    assert (
        "fedfa: scaling = 'none' does not scale layers to one norm: set method.scaling "
        "to l2 or rms" in warnings["none"][0]
    )
    assert warnings["l2"] == []
