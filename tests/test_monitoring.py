"""The alerts and the dashboard in deploy/monitoring, in a real Prometheus that reads a real run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.broker.local_addresses import find_free_port
from tests.support.processes import COORDINATOR, Start
from tests.support.waiting import eventually

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"
ALERTS = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = json.loads((FOLDER / "grafana.json").read_text())["panels"]
HEALTHY = {
    'up{job="espalier"}': "1x120",
    "espalier_rounds_total": "0+1x120",
    "espalier_round": "1+1x120",
    "espalier_rounds_wanted": "200x120",
    'espalier_agents{state="gone"}': "4x120",
    'espalier_agents{state="train"}': "6x120",
    'espalier_updates_total{outcome="folded"}': "0+10x120",
    'espalier_updates_total{outcome="refused"}': "0+1x120",
    'espalier_updates_total{outcome="late"}': "0+5x120",
    'espalier_rejects_total{reason="flood"}': "3x120",
    "espalier_link_up": "1x50 0 1x69",
    "espalier_store_up": "1x50 0 1x69",
    "espalier_link_queue_length": "900x120",
    "espalier_transfers_waiting": "0 3x13 0 3x13 0 3x13 0 3x13 0 3x13 0 3x13 0 3x13 0 3x13 0",
    'espalier_accuracy_ratio{of="largest"}': "0.90x60 0.86x60",
}
TROUBLED = HEALTHY | {
    'up{job="espalier"}': "0x120",
    "espalier_rounds_total": "3x120",
    "espalier_round": "4x120",
    'espalier_agents{state="gone"}': "7x120",
    'espalier_updates_total{outcome="refused"}': "0+5x120",
    'espalier_updates_total{outcome="late"}': "0+20x120",
    'espalier_rejects_total{reason="flood"}': "0+1x120",
    "espalier_link_up": "0x120",
    "espalier_store_up": "0x120",
    "espalier_link_queue_length": "2000x120",
    "espalier_transfers_waiting": "3x120",
    'espalier_accuracy_ratio{of="largest"}': "0.90x60 0.80x60",
}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize(("series", "fires"), [(HEALTHY, False), (TROUBLED, True)])
def test_alerts_fire_for_a_troubled_run_only(
    series: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    firing = [{"labels": f'{{alertname="{one["alert"]}"}}', "value": 1} for one in ALERTS]
    query = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "110m",
        "exp_samples": firing if fires else [],
    }
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": [query]}
    test = tmp_path / "test.yml"
    test.write_text(json.dumps({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [case]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", test], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def selectors(expression: str) -> list[str]:
    """Return the series that an expression reads, without the dashboard's variables."""
    expression = expression.replace('{instance=~"$instance"}', "")
    return re.findall(r"(?:espalier_\w+|\bup)(?:\{[^}]*\})?", expression)


@pytest.mark.slow
@pytest.mark.processes
def test_every_query_finds_the_metrics_of_a_run(tmp_path: Path, start: Start) -> None:
    port, metrics = (find_free_port("127.0.0.1", 0) for _ in range(2))
    settings = (FOLDER / "prometheus.yml").read_text()
    settings = settings.replace("scrape_interval: 15s", "scrape_interval: 1s")
    settings = settings.replace("127.0.0.1:9464", f"127.0.0.1:{metrics}")
    (tmp_path / "prometheus.yml").write_text(settings)
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    start(
        program("prometheus"),
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    (tmp_path / "run.toml").write_text(
        "rounds = 1000\n[method]\nname = 'fedavg'\n[simulate]\nagents = 3\n"
        "[private]\nclip = 1.0\nnoise = 1.0\nuncovered = ['scores']\n"
    )
    run = start(
        *COORDINATOR, "simulate", "run.toml", "--set", f"metrics.listen=127.0.0.1:{metrics}"
    )

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]  # type: ignore[no-any-return]
        except OSError:
            return []

    eventually(lambda: run.poll() is not None or ask("espalier_rounds_total >= 2"))
    assert run.poll() is None
    targets = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions = [*targets, *(rule["expr"] for rule in ALERTS)]
    missing = {one for text in expressions for one in selectors(text) if not ask(one)}
    assert not missing
    for text in targets:
        query = text.replace("$instance", ".+").replace("$__rate_interval", "5s")
        # A rate needs two samples within the window: one scrape more than a selector.
        eventually(partial(ask, query))
