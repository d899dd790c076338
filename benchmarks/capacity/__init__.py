"""What a large fleet needs, extrapolated from measured smaller ones."""
