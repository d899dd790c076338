"""The contract between the coordinator and the agents. Importing this package imports no torch."""
