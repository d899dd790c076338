"""Communicate with the agents of a run: send tasks and weights, receive updates, and drive the
round with the messages that arrive.
"""
