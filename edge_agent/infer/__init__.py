"""`edge-agent infer`: download releases, choose the fastest correct graph, answer questions."""
