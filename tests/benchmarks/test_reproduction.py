"""Experiments of the papers' tables: their files, their cells, and their tables."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from benchmarks.codecs_without_feedback import INT8, TOP10
from benchmarks.reproduction import experiment as experiments
from benchmarks.reproduction.cells import (
    Finished,
    Place,
    assign_groups,
    average_group,
    pin_groups,
    read_log,
    read_scores,
    run_cells,
)
from benchmarks.reproduction.command import command
from benchmarks.reproduction.experiment import WITHIN, find_experiment, list_experiments
from benchmarks.reproduction.flower import BY_FLOWER
from benchmarks.reproduction.result_table import (
    collect_entries,
    format_csv,
    format_latex,
    format_text,
)
from benchmarks.reproduction.run_costs import Progress, read_costs, read_progress
from coordinator.settings.config import load
from coordinator.simulate.malicious_devices import name_malicious
from federated.errors import ConfigError, Unknown
from federated.methods.catalogue import METHODS
from federated.wire.codecs.catalogue import CODECS, find_codec
from tests.support.text_networks import write_bert, write_distilbert, write_pairs

TABLE = """
paper = "A & B"
table = "Table 1"
scores = {worst = "worst", loss = "loss"}
settings = {rounds = 3, train.lr = 0.5}
columns = [{name = "x", groups = [1, 3]}, {name = "y", settings.train.lr = 0.25}]
rows = [
  {name = "first", settings.method.name = "fedavg", paper = [["50.0 ± 0.5", 1.5], []]},
  {name = "second", settings.method.name = "fedprox", groups = []},
]
[scales.full]
[scales.small]
columns = ["y"]
seeds = [0, 1]
settings.rounds = 2
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment `table`, the only one."""
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], catch_exceptions=False)


def finished(row: str, column: str, seed: int, **scores: float) -> Finished:
    return Finished(row, column, seed, {}, [], scores, 60.0, "abc")


def test_the_settings_of_a_cell_are_those_of_all_its_parts(table: Path) -> None:
    made = find_experiment("table")
    first, second = (
        cell for cell in made.list_cells(made.find_scale("full")) if cell.column.name == "x"
    )
    assert first.settings == {"rounds": 3, "train.lr": 0.5, "method.name": "fedavg"}
    assert (first.groups, second.groups) == ((1, 3), ())
    cells = made.list_cells(made.find_scale("small", [("train.batch", 4)]))
    assert [(c.row.name, c.seed) for c in cells] == [
        *(("first", 0), ("first", 1), ("second", 0), ("second", 1)),
    ]
    assert cells[0].settings == {
        **{"rounds": 2, "train.lr": 0.25, "method.name": "fedavg", "train.batch": 4}
    }
    assert len({cell.run for cell in cells}) == 2  # a run's name continues with its seed
    with pytest.raises(Unknown, match="large"):
        made.find_scale("large")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["50.0 ± 0.5", 1.5], []', '["50.0 ± 0.5"], []', "2 numbers of the paper"),
        ('columns = ["y"]', 'columns = ["z"]', "row or column 'z'"),
        ('"second"', '"first"', "different names"),
        ("seeds = [0, 1]", "seed = 0", "seed"),
    ],
)
def test_a_wrong_experiment_is_an_error(table: Path, old: str, new: str, words: str) -> None:
    table.write_text(TABLE.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        find_experiment("table")


def test_a_table_shows_means_and_deviations_beside_the_papers_numbers(table: Path) -> None:
    made = find_experiment("table")
    found = [
        finished("first", "x", 0, worst=0.5, loss=1.0),
        finished("first", "x", 1, worst=0.6, loss=3.0),
        finished("second", "x", 0, worst=0.25),
    ]
    entries = collect_entries(made, found)
    assert format_csv(entries).splitlines() == [
        "row,column,score,mean,deviation,seeds,paper",
        "first,x,worst,55.00,7.07,2,50.0 ± 0.5",
        "first,x,loss,2.00,1.41,2,1.5",
        "second,x,worst,25.00,0.00,1,",
        "second,x,loss,,,0,",
    ]
    lines = format_text(made, entries).splitlines()
    assert lines[0] == "A & B, Table 1"
    assert [line.split() for line in lines[2:]] == [
        ["first", "55.0", "±", "7.1", "(50.0", "±", "0.5)", "2.0", "±", "1.4", "(1.5)"],
        ["second", "25.0", "-"],
    ]
    assert (
        r"first & 55.0 $\pm$ 7.1 (50.0 $\pm$ 0.5) & 2.0 $\pm$ 1.4 (1.5) \\"
        in format_latex(made, entries).splitlines()
    )


def test_an_experiment_like_another_states_only_the_difference(table: Path) -> None:
    table.with_stem("more").write_text(
        'like = "table"\ntable = "Table 2"\nscores = {mean = "mean"}\nsettings.train.batch = 8\n'
        'rows = [{name = "third", settings.method.name = "fedavg"}]\nscales.small.seeds = [4]\n'
    )
    made = find_experiment("more")
    assert (made.name, made.paper, made.table) == ("more", "A & B", "Table 2")
    [cell] = made.list_cells(made.find_scale("small"))
    assert (cell.row.name, cell.column.name, cell.seed) == ("third", "y", 4)
    assert cell.settings == {
        **{"rounds": 2, "train.lr": 0.25, "train.batch": 8, "method.name": "fedavg"}
    }
    assert made.scores == {"mean": "mean"}
    table.with_stem("lost").write_text('like = "nobody"\n')
    with pytest.raises(ConfigError, match="nobody"):
        find_experiment("lost")


def test_central_training_is_a_row_with_settings_of_its_own(table: Path) -> None:
    table.write_text(TABLE + "central.settings = {rounds = 9, simulate.agents = 1}\n")
    made = find_experiment("table")
    *others, central = made.list_cells(made.find_scale("small"), [0])
    assert [cell.row.name for cell in others] == ["first", "second"]
    assert (central.row.name, central.groups) == ("central training", ())
    assert central.settings == {"rounds": 9, "train.lr": 0.25, "simulate.agents": 1}
    found = [finished("first", "y", 0, worst=0.5), finished("central training", "y", 0, worst=0.8)]
    assert format_text(made, collect_entries(made, found)).splitlines()[-1] == (
        "y: 62% of central training (worst); too little to rank the rows"
    )
    found[0] = finished("first", "y", 0, worst=0.72, loss=2.0)
    assert format_text(made, collect_entries(made, found)).splitlines()[-1] == (
        "y: 90% of central training (worst)"
    )


CHOICES = """
validation = "before"
choices = [{settings.train.lr = 0.1}, {settings.train.lr = 0.2}]
[scales.full]
"""


def test_each_cell_takes_the_settings_with_the_best_validation_score(table: Path) -> None:
    table.write_text(TABLE.replace("[scales.full]", CHOICES))
    made = find_experiment("table")
    cells = [c for c in made.list_cells(made.find_scale("full")) if c.column.name == "x"]
    assert [(c.row.name, c.settings["train.lr"]) for c in cells] == [
        *(("first", 0.1), ("first", 0.2), ("second", 0.1), ("second", 0.2))
    ]
    assert "train.lr=0.2" in cells[1].title
    found = [
        Finished(c.row.name, "x", 0, c.settings, [], {"before": b, "worst": w}, 1.0, "abc")
        for c, b, w in zip(cells, (0.3, 0.4, 0.9, 0.2), (0.8, 0.5, 0.6, 0.7), strict=True)
    ]
    worst = {e.row: e.mean for e in collect_entries(made, found) if e.score == "worst"}
    assert worst == pytest.approx({"first": 50, "second": 60})
    table.write_text(TABLE.replace("[scales.full]", CHOICES.replace('"before"', '""')))
    with pytest.raises(ConfigError, match="validation score"):
        find_experiment("table")


def test_rows_are_compared_after_equal_costs(table: Path) -> None:
    """The second row sends 30 bytes in all: the first one had sent as much after two rounds."""
    table.write_text(TABLE.replace('loss = "loss"', 'equal = "worst within bytes"'))
    made = find_experiment("table")
    runs = [
        ("first", [(20, 0.2), (30, 0.4), (40, 0.9)]),
        ("second", [(15, 0.3), (30, 0.5)]),
        ("central training", [(1, 1.0)]),
    ]
    found = [
        msgspec.structs.replace(
            finished(row, "y", 0, worst=0.9),
            progress=[Progress(0.0, sent, {"worst": score}) for sent, score in steps],
        )
        for row, steps in runs
    ]
    equal = {e.row: e.mean for e in collect_entries(made, found) if e.score == "equal"}
    assert equal == pytest.approx({"first": 40, "second": 50, "central training": 100})


def test_progress_is_read_from_the_results_of_a_seed(tmp_path: Path) -> None:
    """Rounds of 3 and 5 bytes; both submodels were scored after the second."""
    (tmp_path / "seed0.json").write_text(
        json.dumps(
            {
                "effort": {"total": 8},
                "rounds": [
                    {"round": 1, "seconds": 1, "bytes_up": 1, "bytes_down": 2},
                    {"round": 2, "seconds": 1, "bytes_up": 3, "bytes_down": 2},
                ],
                "submodels": [{"name": "small"}, {"name": "large"}],
            }
        )
    )
    (tmp_path / "seed0.csv").write_text(
        "round,submodel,view,agent,accuracy\n1,small,after,d0,0.1\n2,small,central,,0.4\n"
        "2,large,central,,0.6\n"
    )
    [step] = read_progress(tmp_path / "seed0.json")
    assert (step.macs, step.bytes) == (8, 8)
    assert step.scores == pytest.approx({"worst": 0.4, "mean": 0.5, "global": 0.6})


def test_costs_are_counted_in_all_and_until_the_target(tmp_path: Path) -> None:
    """Rounds of 3 and 5 bytes; the target was reached after the first."""
    history = [
        {"round": 1, "seconds": 2.0, "bytes_up": 1, "bytes_down": 2},
        {"round": 2, "seconds": 1.0, "bytes_up": 2, "bytes_down": 3},
    ]
    effort = {"mean": 1.0, "mace": 4.0, "total": 9.0, "tmac": 4.0, "rounds_to_target": 1}
    path = tmp_path / "seed0.json"
    path.write_text(json.dumps({"rounds": history, "effort": effort}))
    assert read_costs(path) == {
        **{"bytes": 8, "uploads": 3, "seconds": 3.0, "macs": 9.0, "mace": 4.0, "tmac": 4.0},
        **{"target_rounds": 1, "target_bytes": 3, "target_uploads": 1, "target_seconds": 2.0},
    }
    path.write_text(json.dumps({"rounds": history, "effort": {}}))
    assert read_costs(path) == {"bytes": 8, "uploads": 3, "seconds": 3.0}


def test_joules_are_counted_only_if_those_of_every_round_are_known(tmp_path: Path) -> None:
    history = [
        {"round": 1, "seconds": 2.0, "bytes_up": 1, "bytes_down": 2, "joules": 3.0},
        {"round": 2, "seconds": 1.0, "bytes_up": 2, "bytes_down": 3, "joules": 4.5},
    ]
    effort = {"mean": 1.0, "mace": 4.0, "total": 9.0, "tmac": 4.0, "rounds_to_target": 1}
    path = tmp_path / "seed0.json"
    path.write_text(json.dumps({"rounds": history, "effort": effort}))
    found = read_costs(path)
    assert (found["joules"], found["target_joules"]) == (7.5, 3.0)
    history[1]["joules"] = None
    path.write_text(json.dumps({"rounds": history, "effort": effort}))
    found = read_costs(path)
    assert "joules" not in found
    assert found["target_joules"] == 3.0


def test_a_column_with_a_baseline_shows_how_far_each_seed_falls_below_it(table: Path) -> None:
    table.write_text(TABLE.replace('{name = "y",', '{name = "y", baseline = "x",'))
    made = find_experiment("table")
    found = [
        *(finished("first", "x", seed, worst=0.5) for seed in (0, 1)),
        finished("first", "y", 1, worst=0.375),
        finished("first", "y", 2, worst=0.25),  # nothing to compare with
    ]
    entries = [entry for entry in collect_entries(made, found) if entry.title == "y worst drop"]
    assert [entry.values for entry in entries] == [(12.5,)]
    table.write_text(TABLE.replace('{name = "y",', '{name = "y", baseline = "z",'))
    with pytest.raises(ConfigError, match="row or column 'z'"):
        find_experiment("table")


def test_malicious_devices_have_the_largest_submodel() -> None:
    made = find_experiment("fedfa-figure3")
    plain, attacked = (
        pin_groups(cell, load(None, {}, list(cell.settings.items())))
        for cell in made.list_cells(made.find_scale("check"))
        if cell.row.name == "width: HeteroFL"
    )
    assert len(set(plain.values())) == 2
    changed = {name for name in plain if plain[name] != attacked[name]}
    assert len(changed) <= 1  # the malicious one of five, if its group has the smallest
    assert set(attacked.values()) <= set(plain.values())
    config = load(None, {}, [("simulate.agents", 5), ("simulate.attackers", 0.2)])
    [name] = name_malicious(config)
    assert attacked[name].startswith("w1-")


def test_groups_divide_the_devices_by_their_shares() -> None:
    assert assign_groups(6, [1, 5]) == [0, 1, 1, 1, 1, 1]
    assert Counter(assign_groups(100, [7, 2, 1])) == {0: 70, 1: 20, 2: 10}
    assert assign_groups(10, [1] * 5) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert assign_groups(10, []) == []


@pytest.mark.parametrize(
    ("name", "row", "widths"),
    [
        ("recipfl-mnist", "ExclusiveFL", ["w1", *["w0.2"] * 4]),
        ("dynamicfl-table2", "HeteroFL", [*["w0.25"] * 4, *["w0.5"] * 3, *["w1"] * 3]),
    ],
)
def test_the_first_group_has_the_smallest_submodel_or_the_largest(
    name: str, row: str, widths: list[str]
) -> None:
    made = find_experiment(name)
    cell = next(c for c in made.list_cells(made.find_scale("check")) if c.row.name == row)
    found = pin_groups(cell, load(None, {}, list(cell.settings.items())))
    assert [submodel.split("-")[0] for _, submodel in sorted(found.items())] == widths


def test_the_score_of_a_group_is_the_mean_of_its_devices_latest_ones(tmp_path: Path) -> None:
    path = tmp_path / "seed0.csv"
    path.write_text(
        "round,view,agent,accuracy\n1,after,d0,0.1\n1,after,d1,0.4\n2,before,d1,0.9\n"
        "2,after,d1,0.5\n2,after,d2,0.7\n2,after,,0.8\n"
    )
    found = read_scores(path, "after")
    assert average_group(found, [0, 1, 1], "after/0") == pytest.approx(0.1)
    assert average_group(found, [0, 1, 1], "after/1") == pytest.approx(0.6)
    assert average_group(found, [0, 1, 1], "after//accuracy") == pytest.approx(1.3 / 3)
    with pytest.raises(ConfigError, match="local"):
        average_group(read_scores(path, "labels"), [0, 1, 1], "labels/1")


def test_a_torn_line_of_the_log_is_removed_and_another_file_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = json.dumps({f: getattr(finished("a", "b", 0), f) for f in Finished.__struct_fields__})
    log.write_text(f'{line}\n{{"row": "a", "col')
    assert [one.row for one in read_log(log)] == ["a"]
    assert log.read_text() == f"{line}\n"
    log.write_text('{"name": "other"}\n')
    with pytest.raises(ConfigError, match="this command wrote"):
        read_log(log)


def test_the_same_simulation_of_another_table_is_not_repeated(tmp_path: Path) -> None:
    """NeFL's Figure 6 shows simulations of its Table III. One of another seed, one without a score
    that the table shows, and one of Flower are others.
    """
    made = find_experiment("nefl-figure6")
    [cell] = [c for c in made.list_cells(made.find_scale("small")) if c.row.name == "HeteroFL"]
    scores = {"worst": 0.5, "mean": 0.75}
    other = finished("ResNet18 HeteroFL", "CIFAR-10", cell.seed, **scores)
    other = replace(other, settings=cell.settings, groups=[*cell.groups])
    assert other.equals(cell)
    assert not replace(other, seed=7).equals(cell)
    assert not replace(other, scores={"mean": 0.75}).equals(cell)
    assert not replace(other, row=f"HeteroFL{BY_FLOWER}").equals(cell)
    (tmp_path / "table3.jsonl").write_bytes(msgspec.json.encode(other) + b"\n")
    (tmp_path / "other.jsonl").write_text('{"name": "not a log"}\n')
    log, said = tmp_path / "figure6.jsonl", list[str]()
    [found] = run_cells([cell], Place(log), said.append)
    assert (found.row, found.column, found.scores) == ("HeteroFL", "ResNet18", scores)
    assert read_log(log) == [found]
    assert "the same simulation as that of 'ResNet18 HeteroFL'" in said[0]


def test_every_experiment_states_valid_settings() -> None:
    for name in list_experiments():
        made = find_experiment(name)
        for scale in made.scales:
            for cell in made.list_cells(made.find_scale(scale)):
                load(None, {}, [*cell.settings.items(), ("name", cell.run)])


def test_the_codecs_without_feedback_differ_in_nothing_else() -> None:
    for codec, plain in ((INT8, "int8-zstd"), (TOP10, "top10-zstd")):
        assert find_codec(codec.name) is codec
        assert (
            codec
            == dataclasses.replace(CODECS[plain], name=codec.name, feedback=False)
            != CODECS[plain]
        )


def test_the_experiment_of_all_methods_has_all_methods() -> None:
    assert [row.name for row in find_experiment("methods").rows] == [*METHODS]


def test_the_list_names_every_scale(table: Path) -> None:
    found = json.loads(run("--list", "--format", "json").stdout.splitlines()[-1])["experiments"]
    assert found == [
        {
            **{"name": "table", "paper": "A & B", "table": "Table 1", "scale": scale},
            **{"minutes": None, "result": None},
        }
        for scale in ("full", "small")
    ]
    assert "A & B, Table 1" in run("--list").stdout


def test_the_command_runs_each_cell_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = tmp_path / "made" / "log.jsonl"
    given = ("recipfl-mnist", "--scale", "check", "--log", log, "--set", "train.lr=0.125")
    made = run(*given, "--only", "ExclusiveFL", "--costs", "--format", "json")
    assert made.exit_code == 0, made.output
    assert "ExclusiveFL, seed 0: simulation 1 of 1" in made.stderr
    strong, weak, *costs = json.loads(made.stdout)["entries"]
    assert {"bytes", "TMAC"} <= {cost["score"] for cost in costs}
    assert (strong["paper"], weak["paper"]) == ("92.97 ± 1.98", "77.85 ± 5.14")
    assert 0 <= strong["mean"] <= 100
    assert 0 <= weak["mean"] <= 100
    [one] = read_log(log)
    assert (one.settings["train.lr"], one.groups) == (0.125, [1, 4])
    assert {path.suffix for path in log.parent.iterdir()} == {
        *("", ".csv", ".jsonl", ".png", ".tex", ".txt"),
    }
    assert not [*(log.parent / "log" / "runs").iterdir()]
    again = run(*given, "--only", "ExclusiveFL")
    assert again.exit_code == 0
    assert "simulation 1" not in again.stdout
    assert "(92.97 ± 1.98)" in again.stdout


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    given = ("recipfl-mnist", "--scale", "check", "--log", tmp_path / "log.jsonl")
    made = run(*given, "--set", "data.name=nonesuch.npz")
    assert made.exit_code != 0
    assert made.output.count("failed: ") == 2
    assert "2 of 2 simulations failed" in made.output
    assert run(*given, "--only", "nobody").exit_code == 2


def prepare_texts(root: Path) -> list[str]:
    """Write pairs of sentences, and networks in the place of BERT and DistilBERT; return the
    settings that name them.
    """
    write_pairs(root, copies=20)
    write_bert(root / "bert")
    write_distilbert(root / "distilbert")
    small = json.dumps([f"hf-adapters:{root / 'distilbert'}"])
    model = f"model.name=hf-adapters:{root / 'bert'}"
    return ["--set", model, "--set", f"method.models={small}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(list_experiments()) - {"methods"}))
def test_the_last_row_of_every_table_runs(name: str, tmp_path: Path) -> None:
    """It is the paper's own method in most tables. `test_every_method` runs the methods of the
    other rows, and `test_every_experiment_states_valid_settings` reads the settings of all cells.
    """
    text = tmp_path / "wikitext-2"
    text.mkdir()
    for part in ("train", "valid", "test"):
        (text / f"{part}.txt").write_text("to be or not to be that is the question " * 400)
    made = find_experiment(name)
    row = made.list_cells(made.find_scale("check"))[-1].row.name
    log = ["--log", tmp_path / "log.jsonl", "--set", f"data.root={tmp_path}"]
    if name == "recipfl-mnli":
        pytest.importorskip("transformers")
        log += prepare_texts(tmp_path)
    done = run(name, "--scale", "check", "--only", row, *log)
    assert done.exit_code == 0, done.output
    found = read_log(tmp_path / "log.jsonl")
    assert found
    measured = {score for score in made.scores.values() if WITHIN not in score}
    assert all(measured <= one.scores.keys() and one.progress for one in found)


def test_invalid_settings_are_reported_once_and_those_of_the_rows_method_are_valid(
    tmp_path: Path,
) -> None:
    given = ("recipfl-mnist", "--scale", "check", "--only", "RecipFL")
    log = ("--log", tmp_path / "log.jsonl")
    wrong = run(*given, *log, "--set", "method.server_rate=0.005")
    assert wrong.exit_code == 3
    assert "server_lr" in wrong.output
    assert "simulation 1" not in wrong.output
    assert run(*given, *log, "--set", "method.server_lr=0.005").exit_code == 0
    assert run(*given, "--log", tmp_path / "log").exit_code == 2, "the folder would have its name"
