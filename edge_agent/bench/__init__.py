"""`edge-agent bench`: measure latency, memory and multiply-adds on the device."""
