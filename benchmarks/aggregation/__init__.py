"""Compare the speed of aggregation with other projects."""
