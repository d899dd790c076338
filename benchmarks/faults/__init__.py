"""The fault campaign: what is broken (scenarios), the places where it is (places, proxy, fuse), one
run of it (trial), and all of them (command).
"""
