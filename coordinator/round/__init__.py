"""A round as a value: the pure function `step(round, event) -> (round, actions)`."""
