"""`python -m benchmarks docs`: write the generated tables of the documentation."""
