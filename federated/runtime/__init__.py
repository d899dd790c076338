"""What every process of the project needs: console, logs, files, service manager."""
