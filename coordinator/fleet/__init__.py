"""The connected agents, the updates on their way in, and the driver of the round."""
