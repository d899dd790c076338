"""Brokers that the coordinator starts itself: mosquitto or the embedded one."""
