"""What the device is and what it can do now: board, memory, power, heat, load, limits."""
