"""Codecs, which encode the tensors of a trained update as the arrays to send."""
