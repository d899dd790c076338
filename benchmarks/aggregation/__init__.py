"""Compare the speed of aggregation with other projects, each in its own virtual environment."""
