"""Benchmarks and fault campaigns, run with `python -m benchmarks NAME`. Not part of an
installation.
"""
