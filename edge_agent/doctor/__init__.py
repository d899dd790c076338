"""`edge-agent doctor`: is this device fit to take part?"""
