"""Networks of the user's own: how one that knows nothing of submodels is read and cut (`family` has
the rules). Importing this imports no torch.
"""
