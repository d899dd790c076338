"""Fuzzing: decoders, mutations of well-formed inputs, and the worker process."""
