"""Compare the speed of simulation with other projects."""
