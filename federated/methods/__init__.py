"""Federated methods: one file per method with arithmetic of its own."""
