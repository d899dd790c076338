"""`edge-agent bench`: latency, memory and multiply-adds, measured on the device."""
