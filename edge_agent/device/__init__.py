"""Read and measure the device (board, memory, power, heat, load), and limit what the agent uses."""
