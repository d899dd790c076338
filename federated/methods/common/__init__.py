"""Arithmetic and lists of submodels that several methods share, or that are too long for a method's
own file.
"""
