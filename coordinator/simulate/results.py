"""Write the results of a simulation: a JSON file and a CSV file per seed, a summary over seeds, and
plots.

FOLDER/seed0.json            config, commit, versions, rounds, scores of all devices together,
                             multiply-adds of training (effort), summary
FOLDER/seed0.csv             one score per line: round, submodel, view, agent, accuracy, loss, ...
FOLDER/seed0-partition.json  examples of each device, with a plot beside it
FOLDER/summary.json, .csv    `fleet_scores.summarise` per seed, with mean and deviation
FOLDER/accuracy.png          accuracy by round and submodel, over all seeds
"""

from __future__ import annotations

import csv
import itertools
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from coordinator.observe.fleet_scores import is_target_reached, summarise
from coordinator.observe.round_records import Score
from coordinator.settings.config import Config, to_json
from coordinator.simulate.device_data import DataSource, name_devices
from coordinator.store import training_counts
from coordinator.store.run_store import Store
from coordinator.trust import privacy_budget
from coordinator.views.training_energy import estimate_energy, sum_known
from federated.data import partitions
from federated.engine.training_multiply_adds import effort, macs
from federated.install_command import NAME, pip_command
from federated.method import State
from federated.methods.catalogue import find_method
from federated.runtime.console import Say
from federated.runtime.provenance import commit, versions
from federated.wire.release_messages import UNTRAINED
from models.cost import cost
from models.submodel import Submodel
from models.submodel_building import initial

__all__ = ["encode_json", "write", "write_summary"]

COLUMNS = ("round", "submodel", "view", "agent", "accuracy", "loss", "examples", "trained_updates")
PACKAGES = (NAME, "numpy", "torch")
HEADLINE = (
    "global",
    "worst",
    "mean",
    "macro_f1",
    "majority_f1",
    "perplexity",
    "rmse",
    "local",
    "before",
    "after",
    "strong",
    "weak",
)


def write(
    folder: Path, config: Config, store: Store, source: DataSource, say: Say
) -> dict[str, Any]:
    """Write the results of one seed from its store; return them as plain values."""
    counts = training_counts.count_by_round(store)
    scores = training_counts.mark_scores(counts, store.read_all_scores())
    found = collect(config, store, counts[max(counts)], scores)
    base = folder / f"seed{config.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(encode_json(found))
    write_scores(base.with_suffix(".csv"), scores)
    examples = partitions.count_kinds(source.whole, source.parts)
    title = f"{config.data.name}, {source.partition}"
    path = folder / f"seed{config.seed}-partition.png"
    draw(say, "plot_partition", path, examples, name_devices(source.agents), title)
    print_results(config, found, say)
    return found


def collect(
    config: Config,
    store: Store,
    counts: training_counts.Counts,
    scores: Sequence[tuple[int, Score]],
) -> dict[str, Any]:
    """Return the results of one seed as plain values. scores: round and score of each."""
    facts = store.read_facts()
    by_name = {submodel.name: submodel for submodel in facts.menu}
    assigned = {agent: by_name[name] for agent, name in store.read_last_submodels().items()}
    latest = {(s.submodel, s.view, s.agent): s for _, s in scores}
    return {
        "run": config.name,
        "seed": config.seed,
        "config": to_json(config),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            **versions(PACKAGES),
        },
        "seconds": round(sum(seconds for _, seconds, *_ in store.read_history()), 3),
        "submodels": [
            describe_submodel(submodel, list(assigned.values()), counts) for submodel in facts.menu
        ],
        "untrained": counts.untrained,
        "assigned": {agent: submodel.name for agent, submodel in sorted(assigned.items())},
        "rounds": describe_rounds(store),
        "scores": [
            {"round": n, **msgspec.to_builtins(score)} for n, score in scores if not score.agent
        ],
        "effort": compute_effort(config, store),
        "summary": summarise(list(latest.values()), facts.menu, assigned),
        **describe_privacy(config, store),
    }


def describe_rounds(store: Store) -> list[dict[str, Any]]:
    """Return the time, the bytes and the joules of training of each round; joules are null unless
    the power of all devices that trained is known.
    """
    energy = estimate_energy(store)
    return [
        {
            "round": number,
            "seconds": round(seconds, 3),
            "bytes_up": up,
            "bytes_down": down,
            "joules": sum_known([*energy[number].values()]),
        }
        for number, seconds, up, down in store.read_history()
    ]


def print_results(config: Config, found: Mapping[str, Any], say: Say) -> None:
    """Print the headline scores of a seed, its effort and its privacy loss."""
    seed, final, missing = f"seed {config.seed}", found["summary"], found["untrained"]
    shown = ", ".join(f"{name} {final[name]:.3f}" for name in HEADLINE if name in final)
    say(f"{seed}: {shown}" + (f"; {UNTRAINED}: {', '.join(missing)}" if missing else ""))
    if find_target(config):
        say(f"{seed}: {describe_effort(found['effort'])}")
    if config.private.noise:
        say(f"{seed}: epsilon {found['epsilon']:.4g} at delta {config.private.delta:g}")


def describe_privacy(config: Config, store: Store) -> dict[str, float]:
    """Return the largest privacy loss of a device in a private run; empty for other runs."""
    if not config.private.noise:
        return {}
    delta = config.private.delta
    epsilon = privacy_budget.compute_epsilon(store.trust.read_costs(), delta)
    return {"epsilon": epsilon, "delta": delta}


def describe_submodel(
    submodel: Submodel, assigned: Sequence[Submodel], counts: training_counts.Counts
) -> dict[str, Any]:
    """Return the size and training of a submodel. trained_updates and trained_rounds are null if
    the store records no updates.
    """
    trained = counts.trained.get(submodel.plain.name)
    return {
        "name": submodel.name,
        "parameters": cost(submodel).parameters,
        "macs": cost(submodel).macs,
        "devices": assigned.count(submodel),
        "trained_updates": trained.updates if trained else None,
        "trained_rounds": trained.rounds if trained else None,
    }


def find_target(config: Config) -> float:
    """Return the target accuracy for TMAC; 0: none."""
    return config.simulate.target or config.target_accuracy


def compute_effort(config: Config, store: Store) -> dict[str, Any]:
    """Return the multiply-adds of training, forward passes only (see
    `federated.engine.training_multiply_adds`), with the target accuracy and the number of rounds to
    reach it.

    tmac and rounds_to_target are None without a target, or if no evaluated round reached it. The
    result is empty if no device trained, or if the recipe limits the steps of a round, so that
    devices train only on a part of their data.
    """
    facts, chosen = store.read_facts(), find_method(config.method_name)
    if config.settings["steps"] or facts.network is None:
        return {}
    state: State = chosen.start(
        initial(facts.network, config.seed, chosen.features), facts.menu, config.settings
    )
    by_name = {submodel.name: submodel for submodel in facts.menu}
    before, rounds = dict[str, Submodel](), list[list[float]]()  # before: by agent
    for number, *_ in store.read_history():
        rounds.append([])
        for entry in store.read_entries(number):
            if entry.outcome == "folded":
                submodel = by_name[entry.submodel]
                passes = chosen.passes(
                    chosen.recipe(state, submodel), submodel, before.get(entry.agent)
                )
                rounds[-1].append(macs(passes) * entry.samples)
                before[entry.agent] = submodel
    if not any(rounds):
        return {}
    target = find_target(config)
    found = find_target_round(store.read_all_scores(), facts.menu, target)
    return {
        **asdict(effort(rounds, config.settings["epochs"], found)),
        "target": target or None,
        "rounds_to_target": found,
    }


def find_target_round(
    scores: Sequence[tuple[int, Score]], menu: Sequence[Submodel], target: float
) -> int | None:
    """Return the first round in which the largest evaluated submodel reached the target; None if
    none did. scores: round and score of each, in order.
    """
    by_round = itertools.groupby(scores, key=lambda one: one[0])
    return next(
        (
            number
            for number, several in by_round
            if is_target_reached([score for _, score in several], menu, target)
        ),
        None,
    )


def describe_effort(found: Mapping[str, Any]) -> str:
    """Return when a run reached its target, and its multiply-adds until then. found: the result of
    `compute_effort`.
    """
    if not found:
        return (
            "no TMAC: no device trained, or train.steps limits the local steps (train.steps = 0 "
            "trains whole epochs)"
        )
    what = "multiply-adds in forward passes of training, without calibration and evaluation"
    if found["tmac"] is None:
        return (
            f"no evaluated round reached the target accuracy {found['target']:g}, so there is no "
            f"TMAC; the run took {found['total']:.4g} {what}"
        )
    return (
        f"round {found['rounds_to_target']} reached the target accuracy {found['target']:g}; TMAC "
        f"{found['tmac']:.4g} {what}"
    )


def write_scores(path: Path, scores: Sequence[tuple[int, Score]]) -> None:
    more = sorted({name for _, s in scores for name in s.metrics} - set(COLUMNS))
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*COLUMNS, *more])
        for number, s in scores:
            lines.writerow(
                [
                    number,
                    *(getattr(s, column) for column in COLUMNS[1:]),
                    *(s.metrics.get(name, "") for name in more),
                ]
            )


def write_summary(
    folder: Path, name: str, found: Sequence[Mapping[str, Any]], say: Say
) -> dict[str, Any]:
    """Write the summary over seeds and the plot of accuracies; return the summary."""
    made = {**summarise_seeds(name, found), "results": str(folder)}
    (folder / "summary.json").write_text(encode_json(made))
    means = made["summary"]
    write_means(folder / "summary.csv", means, found)
    submodels = [one["name"] for one in found[0]["submodels"]]
    scores = [one["scores"] for one in found]
    draw(say, "plot_accuracies", folder / "accuracy.png", scores, submodels, name)
    if len(found) > 1:
        listed = (
            f"{k} {means[k]['mean']:.3f} ± {means[k]['deviation']:.3f}"
            for k in HEADLINE
            if k in means
        )
        say(f"{len(found)} seeds: {', '.join(listed)}")
    say(f"wrote results to {folder}")
    return made


def summarise_seeds(name: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of an experiment over all seeds: mean and deviation of each number."""
    keys = sorted({key for one in found for key in one["summary"]})
    rows = {key: [one["summary"][key] for one in found if key in one["summary"]] for key in keys}
    return {
        "experiment": name,
        "method": found[0]["config"]["method"].get("name", ""),
        "seeds": [one["seed"] for one in found],
        "rounds": [len(one["rounds"]) for one in found],
        "seconds": sum(one["seconds"] for one in found),
        "commit": found[0]["commit"],
        "summary": {
            key: {
                "mean": statistics.fmean(v),
                "deviation": statistics.stdev(v) if len(v) > 1 else 0.0,
            }
            for key, v in rows.items()
        },
        "untrained": {str(one["seed"]): one["untrained"] for one in found if one["untrained"]},
        "per_seed": {str(one["seed"]): one["summary"] for one in found},
    }


def write_means(
    path: Path, means: Mapping[str, Mapping[str, float]], found: Sequence[Mapping[str, Any]]
) -> None:
    """Write a line per number: its mean, its deviation, and its value with each seed."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["metric", "mean", "deviation", *(f"seed{one['seed']}" for one in found)])
        for key, row in means.items():
            values = (one["summary"].get(key, "") for one in found)
            lines.writerow([key, *row.values(), *values])


def encode_json(found: Mapping[str, Any]) -> str:
    """Return strict JSON: numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def draw(say: Say, function: str, path: Path, *arguments: Any) -> None:
    """Draw a plot with a function of `coordinator.views.plot_drawing`, or say that matplotlib is
    missing.
    """
    try:
        from coordinator.views import plot_drawing
    except ModuleNotFoundError as error:
        say(
            f"skipped the plot {path.name}: {error.name} is not installed; "
            f"{pip_command('simulate')}"
        )
        return
    getattr(plot_drawing, function)(path, *arguments)
