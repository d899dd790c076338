"""Trace and cut networks that a user wrote, which need not know of submodels (`user_network` has
the rules). Importing this package does not import torch.
"""
