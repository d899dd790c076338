"""The real parts of fault trials: processes, brokers, stores, links and disks to break."""
