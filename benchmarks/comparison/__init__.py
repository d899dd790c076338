"""Compare measurements of this project with other projects and with limits, print them, and save
them for the documentation.
"""
