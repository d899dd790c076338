"""Agents made of nothing but the protocol: hundreds in one process and one thread, over real
sockets to a real broker.
"""
