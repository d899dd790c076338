"""Fault schedules of whole fleets in virtual time."""
