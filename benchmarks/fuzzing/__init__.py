"""Parts of `python -m benchmarks fuzz`: the decoders under test, real encodings to start from,
mutations that keep inputs well-formed, and the worker process.
"""
