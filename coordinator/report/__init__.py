"""The page that `coordinator report` writes on a run, to show to others."""
