"""Fault campaign: scenarios, their places (places, proxy, fuse), one run (trial), and all of them
(command).
"""
