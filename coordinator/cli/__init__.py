"""Implement the command `coordinator`, one file per subcommand. Importing it does not import
PyTorch.
"""
