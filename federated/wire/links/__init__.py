"""Links, which connect to a broker to send and receive messages: one file per kind."""
