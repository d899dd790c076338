"""The built web page of Espalier: static files that `coordinator web` serves."""
