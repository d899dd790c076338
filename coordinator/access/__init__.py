"""Access of devices to a run: the certificate authority, enrolment and revocation."""
