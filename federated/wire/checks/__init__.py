"""Checks of a broker and of the way to it, for `edge-agent doctor` and `coordinator doctor`."""
