"""What differs between operating systems: locks, processors, limits of processes, and functions of
the C library. Linux has all of it; each function says what happens elsewhere.
"""
