"""Decide what happens in a round, without I/O: `step(round, event) -> (round, actions)`."""
