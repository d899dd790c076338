"""What devices learn from: data sets, the ways to share them out, and nothing of methods. Importing
this package imports no torch.
"""
