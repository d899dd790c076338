"""Memory that a robust rule uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import resource, sys, tempfile
from pathlib import Path
import torch
from federated.engine.update_part_files import PartStore
from federated.method import Part
from federated.engine.robust.catalogue import RULES
from federated.engine.robust.rule import combine

torch.set_num_threads(1)
rule, rows = RULES[sys.argv[1]], 2048
old = {"w": torch.zeros(rows, 1024)}
combine_small = PartStore(Path(tempfile.mkdtemp(dir=sys.argv[2])))
for i in range(9):
    combine_small.fold([Part("w", ((0, 9), (0, 9)), (rows, 1024), torch.ones(9, 9))], (i,))
combine(rule, combine_small, old, 3)
kept = PartStore(Path(tempfile.mkdtemp(dir=sys.argv[2])))
for i in range(40):
    wide = 1024 if i % 2 else 512
    values = torch.full((rows, wide), float(i))
    kept.fold([Part("w", ((0, rows), (0, wide)), (rows, 1024), values)], (i,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = combine(rule, kept, old, 3)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown, total.sums["w"].value.nbytes // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["trimmed", "multikrum"])
def test_memory_holds_the_result_and_not_the_updates(tmp_path, rule):
    """40 updates of 4 and 8 MB, 240 in all: beyond the total there is room for one update and a few
    pieces.
    """
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, rule, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
    )
    grown, total = map(int, ran.stdout.split())
    assert grown < total + 40 * 1024, f"{grown} kB for a total of {total} kB"
