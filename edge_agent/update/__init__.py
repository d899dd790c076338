"""`edge-agent update`: install another version beside this one, check it, and switch to it."""
