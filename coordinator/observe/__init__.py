"""Events of a run, the records it keeps, and the readers that show them."""
