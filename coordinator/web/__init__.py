"""Serve a web page that shows a folder of runs: what each run does, who trains what, and how well.
It reads the runs' folders in a process of its own, so that a run never waits for a page.

`page/` has the page's sources in TypeScript. `make web` builds them into the package
`espalier_web`.
"""
