"""What happens in a run, as one stream of events, and the readers that show, log, count and keep
it.
"""
