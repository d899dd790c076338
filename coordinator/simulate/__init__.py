"""Simulate fleets on one machine: experiments, the demo, and assignment without agents."""
