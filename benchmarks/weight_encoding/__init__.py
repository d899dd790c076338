"""Compare the speed, the bytes and the accuracy of encoded weights."""
