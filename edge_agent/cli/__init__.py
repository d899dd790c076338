"""The command `edge-agent`: one file per subcommand. Does not import torch."""
