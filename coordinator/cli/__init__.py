"""The command `coordinator`: one file per command. Importing it loads no torch."""
