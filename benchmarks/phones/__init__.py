"""Train in browsers beside PyTorch agents, and compare their losses and their speed."""
