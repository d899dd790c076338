"""What several methods build on, and parts that would make a method's own file too long: arithmetic
and sizes. No method of the catalogue is here.
"""
