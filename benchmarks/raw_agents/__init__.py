"""Agents that only speak the protocol: hundreds in one thread, over sockets to a real broker."""
