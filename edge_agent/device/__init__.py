"""The device's hardware and current state: board, memory, power, heat, load and limits."""
