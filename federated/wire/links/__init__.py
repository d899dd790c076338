"""Links: the ways to send and receive messages. One file each."""
