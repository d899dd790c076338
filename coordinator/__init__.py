"""The coordinator: keeps the largest network, asks devices to train parts of it, folds what they
learn.
"""
