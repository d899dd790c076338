"""`edge-agent infer`: download releases, choose the fastest graph that passes its checks, and
answer requests.
"""
