"""Fault campaign: scenarios that kill, cut and fill parts of a run, which must lose no update."""
