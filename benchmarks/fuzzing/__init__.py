"""Fuzzing: what is decoded (decoders), how well-formed inputs are bent (mutation), and the process
that does it (worker).
"""
