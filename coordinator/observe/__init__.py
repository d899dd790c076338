"""Define the events and records that describe a run, and the readers that show or store them."""
