"""Releases on a device: download them, follow new ones, and read the options that name one."""
