"""The credentials of a device: enrolment, certificates, and the name it goes by."""
