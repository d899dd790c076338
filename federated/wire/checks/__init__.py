"""Checks of a machine, a broker and the way to it, for the `doctor` of coordinator and agent."""
