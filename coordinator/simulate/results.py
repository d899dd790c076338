"""What a simulation leaves for a researcher: one JSON and one CSV per seed, a summary over seeds,
and pictures.

FOLDER/seed0.json            config, commit, versions, rounds, scores of all devices together,
                             multiply-adds of training (effort), summary
FOLDER/seed0.csv             one score a line: round, submodel, view, agent, accuracy, loss, ...
FOLDER/seed0-partition.json  which examples each device held; beside it a picture
FOLDER/summary.json, .csv    `score_summary.summary` per seed, with mean and deviation
FOLDER/accuracy.png          per round and submodel, over all seeds
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

from coordinator.observe.records import Score
from coordinator.observe.score_summary import reached, summary
from coordinator.settings.config import Config, to_json
from coordinator.simulate.data_source import Source, names
from coordinator.store import training_counts
from coordinator.store.store import Store
from coordinator.trust import privacy_budget
from federated.data import partitions
from federated.engine.accounting import effort, macs
from federated.method import State
from federated.methods.catalogue import method
from federated.runtime.console import Say
from federated.runtime.provenance import commit, versions
from federated.wire.release_files import UNTRAINED
from models.cost import cost
from models.families.catalogue import initial
from models.submodel import Submodel

__all__ = ["plain", "write", "write_summary"]

COLUMNS = ("round", "submodel", "view", "agent", "accuracy", "loss", "examples", "trained_updates")
PACKAGES = ("espalier", "numpy", "torch")
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


def write(folder: Path, config: Config, store: Store, source: Source, say: Say) -> dict[str, Any]:
    """Write the results of one seed from what its store holds; return them as plain values."""
    scores = marked(training_counts.count_by_round(store), store.all_scores())
    found = collect(config, store, scores)
    base = folder / f"seed{config.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(plain(found))
    write_scores(base.with_suffix(".csv"), scores)
    held = partitions.counts(source.whole, source.parts)
    draw(
        say,
        "partition",
        folder / f"seed{config.seed}-partition.png",
        held,
        names(source.agents),
        f"{config.data.name}, {source.partition}",
    )
    say_results(config, found, say)
    return found


def collect(config: Config, store: Store, scores: Sequence[tuple[int, Score]]) -> dict[str, Any]:
    """The results of one seed as plain values. scores: all of them, each with its round."""
    facts, trained = store.read_facts(), training_counts.count_by_round(store)
    by_name = {submodel.name: submodel for submodel in facts.menu}
    assigned = {agent: by_name[name] for agent, name in store.last_submodels().items()}
    known = trained[max(trained)]
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
        "seconds": round(sum(seconds for _, seconds, *_ in store.history()), 3),
        "submodels": [
            described(submodel, list(assigned.values()), known) for submodel in facts.menu
        ],
        "untrained": known.untrained,
        "assigned": {agent: submodel.name for agent, submodel in sorted(assigned.items())},
        "rounds": [
            {"round": n, "seconds": round(s, 3), "bytes_up": up, "bytes_down": down}
            for n, s, up, down in store.history()
        ],
        "scores": [
            {"round": n, **msgspec.to_builtins(score)} for n, score in scores if not score.agent
        ],
        "effort": spent(config, store),
        "summary": summary(latest(scores), facts.menu, assigned),
        **told(config, store),
    }


def say_results(config: Config, found: Mapping[str, Any], say: Say) -> None:
    """Tell the user the headline scores of a seed, its effort and its privacy budget."""
    seed, final, missing = f"seed {config.seed}", found["summary"], found["untrained"]
    shown = ", ".join(f"{name} {final[name]:.3f}" for name in HEADLINE if name in final)
    say(f"{seed}: {shown}" + (f"; {UNTRAINED}: {', '.join(missing)}" if missing else ""))
    if wanted(config):
        say(f"{seed}: {told_effort(found['effort'])}")
    if config.private.noise:
        say(f"{seed}: epsilon {found['epsilon']:.4g} at delta {config.private.delta:g}")


def told(config: Config, store: Store) -> dict[str, float]:
    """What a private run told of the device of which it told most; nothing of another run."""
    guard = config.private
    return (
        {
            "epsilon": privacy_budget.compute_epsilon(store.trust.read_costs(), guard.delta),
            "delta": guard.delta,
        }
        if guard.noise
        else {}
    )


def latest(scores: Sequence[tuple[int, Score]]) -> list[Score]:
    """The last score of each submodel, view and device."""
    return list({(s.submodel, s.view, s.agent): s for _, s in scores}.values())


def marked(
    trained: Mapping[int, training_counts.Counts], scores: Sequence[tuple[int, Score]]
) -> list[tuple[int, Score]]:
    """Scores with the number of updates that had trained their submodel by their round. trained:
    the counts by round.
    """
    known = {
        number: training_counts.count_at(trained, number)
        for number in {number for number, _ in scores}
    }
    return [(number, known[number].mark([score])[0]) for number, score in scores]


def described(
    submodel: Submodel, assigned: Sequence[Submodel], known: training_counts.Counts
) -> dict[str, Any]:
    """trained_updates, trained_rounds: null where the store records no updates."""
    what, found = cost(submodel), known.trained.get(submodel.plain.name)
    trained = {
        "trained_updates": found.updates if found else None,
        "trained_rounds": found.rounds if found else None,
    }
    return {
        "name": submodel.name,
        "parameters": what.parameters,
        "macs": what.macs,
        "devices": assigned.count(submodel),
        **trained,
    }


def wanted(config: Config) -> float:
    """The target accuracy up to which TMAC counts rounds; 0: none."""
    return config.simulate.target or config.target_accuracy


def spent(config: Config, store: Store) -> dict[str, Any]:
    """Multiply-adds of training, forward passes only (see `federated.engine.accounting`), with the
    target and the rounds it took to reach it.

    tmac and rounds_to_target are None without a target, or where no evaluated round reached it.
    Empty where nobody trained, or where the recipe bounds the steps of a round, so that devices
    train on a part of their data.
    """
    facts, chosen = store.read_facts(), method(config.method_name)
    if config.settings["steps"] or facts.network is None:
        return {}
    state: State = chosen.start(
        initial(facts.network, config.seed, chosen.features), facts.menu, config.settings
    )
    by_name, before, rounds = (
        {submodel.name: submodel for submodel in facts.menu},
        dict[str, Submodel](),
        list[list[float]](),
    )
    for number, *_ in store.history():
        rounds.append([])
        for entry in store.entries(number):
            if entry.outcome == "folded":
                submodel = by_name[entry.submodel]
                passes = chosen.passes(
                    chosen.recipe(state, submodel), submodel, before.get(entry.agent)
                )
                rounds[-1].append(macs(passes) * entry.samples)
                before[entry.agent] = submodel
    if not any(rounds):
        return {}
    target = wanted(config)
    found = first_reached(store.all_scores(), facts.menu, target)
    return {
        **asdict(effort(rounds, config.settings["epochs"], found)),
        "target": target or None,
        "rounds_to_target": found,
    }


def first_reached(
    scores: Sequence[tuple[int, Score]], menu: Sequence[Submodel], target: float
) -> int | None:
    """The first round in which the largest evaluated submodel reached the target; None where none
    did. scores: with their rounds, in order.
    """
    by_round = itertools.groupby(scores, key=lambda one: one[0])
    return next(
        (
            number
            for number, several in by_round
            if reached([score for _, score in several], menu, target)
        ),
        None,
    )


def told_effort(found: Mapping[str, Any]) -> str:
    """Whether and when a run reached its target, and its multiply-adds until then. found: as
    `spent` returns it.
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
                # "" where it has none
                [
                    number,
                    *(getattr(s, column) for column in COLUMNS[1:]),
                    *(s.metrics.get(name, "") for name in more),
                ]
            )


def write_summary(
    folder: Path, name: str, found: Sequence[Mapping[str, Any]], say: Say
) -> dict[str, Any]:
    """Writes the summary over seeds and the picture of accuracies; gives the summary."""
    numbers = sorted({key for one in found for key in one["summary"]})
    rows = {key: [one["summary"][key] for one in found if key in one["summary"]] for key in numbers}
    made = {
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
        "results": str(folder),
    }
    (folder / "summary.json").write_text(plain(made))
    with (folder / "summary.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["metric", "mean", "deviation", *(f"seed{one['seed']}" for one in found)])
        for key in numbers:
            lines.writerow(
                [
                    key,
                    *made["summary"][key].values(),
                    *(one["summary"].get(key, "") for one in found),
                ]
            )
    draw(
        say,
        "accuracies",
        folder / "accuracy.png",
        [one["scores"] for one in found],
        [one["name"] for one in found[0]["submodels"]],
        name,
    )
    if len(found) > 1:
        means = made["summary"]
        say(
            f"{len(found)} seeds: "
            + ", ".join(
                f"{k} {means[k]['mean']:.3f} ± {means[k]['deviation']:.3f}"
                for k in HEADLINE
                if k in means
            )
        )
    say(f"results are in {folder}")
    return made


def plain(found: Mapping[str, Any]) -> str:
    """As JSON that every reader takes: what is not a finite number becomes null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def draw(say: Say, what: str, path: Path, *given: Any) -> None:
    """One of the pictures of `coordinator.simulate.plots`; without matplotlib there is none, and
    that is said.
    """
    try:
        from coordinator.simulate import plots
    except ModuleNotFoundError as error:
        say(
            f"no picture {path.name}: {error.name} is not installed; pip install "
            "'espalier[simulate]'"
        )
        return
    getattr(plots, what)(path, *given)
