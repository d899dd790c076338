"""What the coordinator and the agents share: records, wire protocol, methods, data sets and
training. Importing this package imports no torch.
"""
