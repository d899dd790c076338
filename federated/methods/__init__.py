"""Federated methods, one file each: the paper on top, then only its difference."""
