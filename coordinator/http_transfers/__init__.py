"""Serve weights to agents, and take their updates, over HTTP(S) instead of MQTT."""
