"""`coordinator upgrade`: the wanted version of the agents' software, on a few devices first."""
