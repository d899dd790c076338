"""Serve phones, which join with a web page: enrol them, and connect them to the broker."""
