"""Other projects that benchmarks run beside this one, each in an environment of its own."""
