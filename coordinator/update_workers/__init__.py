"""Receive updates in worker processes, so that the coordinator's own process has less to do."""
