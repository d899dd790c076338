"""The families of networks, one file each; `catalogue` lists them."""
