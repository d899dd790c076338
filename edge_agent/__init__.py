"""The agent, which runs on a device: it joins runs, trains, and serves released networks. Importing
this package imports no torch.
"""
