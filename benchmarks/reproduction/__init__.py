"""Run the experiments of the papers' tables, and print them beside the papers' numbers."""
