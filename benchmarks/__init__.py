"""Benchmarks, one file per `python -m benchmarks NAME`. Not part of an installation."""
