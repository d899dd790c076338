"""Readers are chosen by name, other packages can add some, and none of them can end a run.

TRY_READER=module:function tries a reader of your own instead of the built-in ones.
"""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path

import pytest

from coordinator.observe.event_readers.catalogue import READERS, find_readers
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import RoundEnded
from coordinator.run.run_preparation import prepare
from coordinator.settings.config import Config, load
from coordinator.settings.config_tables import Observe
from coordinator.settings.service_tables import Metrics
from federated.errors import ConfigError, Unknown
from tests.support.member_names import list_tried
from tests.support.memory_federation import RUN, Member, digits, federate, make_config
from tests.support.plugins import install

TINY = {
    "model.name": "mlp-small",
    "method.widths": [0.5],
    "method.depths": [1],
    "rounds": 2,
    "train.epochs": 1,
    "train.steps": 2,
}


def test_a_run_has_the_usual_readers_then_those_that_it_names_each_once() -> None:
    named = Config(observe=Observe(readers=("csv", "now", "csv")))
    assert list(find_readers(Config())) == ["log", "now", "clock"]
    assert list(find_readers(named)) == ["log", "now", "clock", "csv"]
    assert "metrics" in find_readers(Config(metrics=Metrics(listen="127.0.0.1:0")))


def test_an_unknown_reader_is_an_error_before_the_run_has_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="unknown event reader 'cvs'; did you mean csv"):
        prepare(make_config({"observe.readers": ["cvs"]}), tmp_path, resume=False)
    assert list(tmp_path.iterdir()) == []


def make_without_context() -> None:
    raise AssertionError("not called")


def test_a_reader_with_other_parameters_is_an_error_before_the_run_has_a_folder(
    tmp_path: Path,
) -> None:
    name = f"{__name__}:make_without_context"
    with pytest.raises(ConfigError, match=r"event reader .* takes \(\), expected \(context\)"):
        prepare(make_config({"observe.readers": [name]}), tmp_path, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_metrics_without_an_address_are_an_error(tmp_path: Path) -> None:
    context = ReaderContext(tmp_path, Config(), lambda: 0.0)
    with pytest.raises(ConfigError, match=r"set metrics\.listen"):
        READERS["metrics"](context)


def test_readers_are_a_setting_of_every_source() -> None:
    assert load(None, {"ESPALIER_OBSERVE__READERS": '["csv"]'}, ()).observe.readers == ("csv",)


# mlflow needs a server
@pytest.mark.parametrize("name", list_tried("reader", sorted(READERS.keys() - {"mlflow"})))
def test_every_reader_reads_a_run(name: str, tmp_path: Path) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboardX")
    chosen = {"metrics.listen": "127.0.0.1:0"} if name == "metrics" else {"observe.readers": [name]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        done = federate(tmp_path, [Member("a0", digits(0, 1))], {**TINY, **chosen})
        gc.collect()
    assert done.result.rounds == 2
    assert "reader dropped" not in (tmp_path / "runs" / RUN / "log.jsonl").read_text()
    left = [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)]
    assert not left, f"reader '{name}' must close what it opened at RunEnded: {left}"


def test_readers_of_other_packages_read_a_run_and_a_failing_one_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path, "toy", {"espalier.readers": {"toy": "tests.support.toy_extensions:count_events"}}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    readers = ["tests.support.toy_extensions:fail_at_rounds", "toy"]
    done = federate(tmp_path, [Member("a0", digits(0, 1))], {**TINY, "observe.readers": readers})
    assert done.result.rounds == 2
    counted = json.loads((tmp_path / "runs" / RUN / "counts.json").read_text())
    assert {name: counted[name] for name in ("RoundStarted", "RoundEnded", "RunEnded")} == {
        "RoundStarted": 2,
        "RoundEnded": 2,
        "RunEnded": 1,
    }
    log = (tmp_path / "runs" / RUN / "log.jsonl").read_text()
    assert log.count("reader dropped") == 1
    assert RoundEnded.__name__ in log
