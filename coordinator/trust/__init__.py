"""Protect a run against faulty and malicious messages and updates, and account for differential
privacy.
"""
