"""Support for all processes of the project: console, logs, files, service manager."""
