"""Whole fleets in virtual time: schedules of faults, each from one seed."""
