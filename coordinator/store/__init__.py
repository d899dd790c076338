"""The folder of a run: checkpoints, database, journal, lock."""
