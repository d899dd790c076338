"""Simulate whole fleets in virtual time under random faults, to find defects of the coordinator and
the agent.
"""
