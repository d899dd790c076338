"""What commands show: stored runs, their agents and logs, and the methods."""
