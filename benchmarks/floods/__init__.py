"""Floods of connections and messages that a run must withstand, and revocations of many agents."""
