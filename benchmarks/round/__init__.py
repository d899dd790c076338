"""Compare the time of a round, in which agents send back what they get, with that of other ways to
move the same bytes.
"""
