"""The fresh process that measures, as the command sees it: started, held to limits, asked, and
buried where it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from edge_agent.bench.row import Answer, Plan
from edge_agent.device.limits import Cage, Limits

__all__ = ["ask"]


def ask(plans: Sequence[Plan], limits: Limits) -> list[Answer]:
    """The answer to each plan, by one fresh process under limits; what it did not live to answer
    says why. Plans are of one number of threads.

    KeyboardInterrupt ends the process with it.
    """
    threads = str(plans[0].threads)
    # Passive, as the agent's own training process: threads that wait must sleep.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "edge_agent.bench.row"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # ctrl-C is the command's to answer
    ) as process:
        cage = Cage(process.pid, limits)
        try:
            out, err = process.communicate(msgspec.json.encode(plans).decode() + "\n")
        finally:
            process.kill()
            process.wait()
            cage.close()
    answers = [
        msgspec.json.decode(line, type=Answer) for line in out.splitlines() if line.endswith("}")
    ]
    why = Answer(error=_obituary(process.returncode, err, limits))
    return answers + [why] * (len(plans) - len(answers))


def _obituary(code: int, err: str, limits: Limits) -> str:
    limit = f" of {limits.memory // 10**6} MB" if limits.memory else ""
    if code == -signal.SIGKILL:
        return f"killed by the system, most likely out of memory{limit}"
    said = err.strip().splitlines()[-1][:200] if err.strip() else "it said nothing"
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process {how}: {said}" + (f" (its memory has a limit{limit})" if limit else "")
