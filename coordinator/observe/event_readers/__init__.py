"""Show or store the events of a run: on the terminal, in the log, in files, and in metrics servers
and experiment trackers.
"""
