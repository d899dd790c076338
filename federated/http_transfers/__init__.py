"""A device's transfers over HTTP(S): resumed, and repeated after errors, each in its own thread."""
