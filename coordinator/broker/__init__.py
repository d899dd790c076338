"""Start, configure and stop an MQTT broker on this machine: mosquitto or the embedded one."""
