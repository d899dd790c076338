"""A round as a value: what happened goes in as events, what is to be done comes out as actions."""
