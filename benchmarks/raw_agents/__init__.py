"""Agents that speak the protocol but do not train, so that one thread can run hundreds of them over
sockets to a real broker.
"""
