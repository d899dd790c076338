"""Write and read the folder of a run: its checkpoints, database and journal, and the lock on it."""
