"""The connected agents, incoming updates, outgoing weights, and the driver of the round."""
