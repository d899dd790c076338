"""What happens in a run, as records, and the readers that show it."""
