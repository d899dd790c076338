"""Control which devices may connect to a run: enrol them, and issue, renew and revoke their
certificates.
"""
