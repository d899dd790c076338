"""What several methods build on, or one whose file it would fill: arithmetic, sizes and wrappers.
No method of the catalogue is here.
"""
