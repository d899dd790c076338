"""Compare predicted with measured times and memory of training steps."""
