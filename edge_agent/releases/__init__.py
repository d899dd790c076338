"""Download releases to a device, follow new ones, and read the options that name one."""
