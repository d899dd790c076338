"""Networks of the user's own: how to trace and cut a network that ignores submodels (`user_network`
has the rules). Importing this package does not import torch.
"""
