"""The command `edge-agent`: one file per command. Importing it loads no torch."""
