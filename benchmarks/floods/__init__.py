"""Flood a run with connections and messages, revoke many agents, and measure how well it copes."""
