"""The coordinator: keeps the largest network, sends parts of it to devices, and aggregates their
updates.
"""
