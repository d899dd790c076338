"""Who may take part: the fleet's certificate authority, enrolment and revocation."""
