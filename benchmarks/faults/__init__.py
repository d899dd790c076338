"""Kill processes, cut links and fill disks of a run, and check that it loses no update."""
