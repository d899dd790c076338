"""A run from its first round to its last: prepare, start, plan, resume."""
