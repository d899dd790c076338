"""A gateway of a site: an agent of a run at its coordinator's broker, and a coordinator of the
site's devices at a broker of the site.
"""
