"""Start the fresh process that measures rows, limit it, send it plans, and report its crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from edge_agent.bench.measurement_process import Plan
from edge_agent.bench.report import Row
from edge_agent.device.process_limits import Limits, ProcessLimiter
from federated.system.child_processes import OWN_GROUP, was_killed

__all__ = ["run_plans"]


def run_plans(plans: Sequence[Plan], limits: Limits) -> list[Row]:
    """Run plans with the same number of threads in one fresh process under limits, and return a
    row for each. If the process ends early, the missing rows say why.

    KeyboardInterrupt also ends the process.
    """
    threads = str(plans[0].row.threads)
    # Passive, as in the agent's training process: waiting threads must sleep.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "edge_agent.bench.measurement_process"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the command handles ctrl-C
        creationflags=OWN_GROUP,
    ) as process:
        cage = ProcessLimiter(process.pid, limits)
        try:
            out, err = process.communicate(msgspec.json.encode(plans).decode() + "\n")
        finally:
            process.kill()
            process.wait()
            cage.close()
    rows = [msgspec.json.decode(line, type=Row) for line in out.splitlines() if line.endswith("}")]
    why = _describe_exit(process.returncode, err, limits)
    return rows + [replace(plan.row, error=why) for plan in plans[len(rows) :]]


def _describe_exit(code: int, err: str, limits: Limits) -> str:
    limit = f" of {limits.memory // 10**6} MB" if limits.memory else ""
    if was_killed(code):
        return f"killed by the system, most likely out of memory{limit}"
    last = err.strip().splitlines()[-1][:200] if err.strip() else "no output"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return f"the process {how}: {last}" + (f" (memory limit{limit})" if limit else "")
