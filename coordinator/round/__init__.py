"""A round as a value: `step(round, event) -> (round, actions)`, a pure function."""
