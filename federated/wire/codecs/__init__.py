"""Codecs: how the tensors of a trained update become the arrays that are sent."""
