"""Estimate the energy of training from the power that each device measured of itself."""

from __future__ import annotations

from coordinator.store.run_database_reader import RunRecords

__all__ = ["estimate_energy", "sum_known"]

Joules = float | None
"""None: unknown."""


def estimate_energy(records: RunRecords) -> dict[int, dict[str, Joules]]:
    """Return the joules of the trainings whose updates were folded, by round and device: power
    times steps times the seconds of a step, as measured in the training, or else as predicted
    before it.

    None: the profile of the device states no power, or no time of a step is known.
    """
    watts = {name: one.watts for name, one in records.agents.read_profiles().items()}
    expected = {
        (name, number): decision.step
        for name, power in watts.items()
        if power
        for number, decision in records.agents.read_decisions(name)
    }
    found: dict[int, dict[str, Joules]] = {}
    for number, *_ in records.read_history():
        several: dict[str, list[Joules]] = {}  # a round may also fold late updates of a device
        for entry in records.read_entries(number):
            if entry.outcome == "folded":
                name = entry.agent
                step = entry.step or expected.get((name, entry.task or number), 0.0)
                joules = watts.get(name, 0.0) * step * entry.steps
                several.setdefault(name, []).append(joules or None)
        found[number] = {name: sum_known(each) for name, each in several.items()}
    return found


def sum_known(several: list[Joules]) -> Joules:
    """Return the sum, 0 of none; None if one of them is unknown."""
    known = [one for one in several if one is not None]
    return sum(known) if len(known) == len(several) else None
