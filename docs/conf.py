"""Configuration of the documentation site: `make docs` builds it into build/docs."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version

import click
from docutils import nodes
from sphinx.application import Sphinx

from coordinator.cli.main import main as coordinator
from coordinator.cli.options import ConfigOption
from edge_agent.cli.main import main as edge_agent
from federated.install_command import NAME

project = "Espalier"
release = version = installed_version(NAME)
copyright = "the Espalier authors, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_click"]
exclude_patterns: list[str] = []
default_role = "literal"
myst_heading_anchors = 4
nb_execution_in_temp = True
nb_execution_mode = "force"  # so that the notebooks are tested
nb_execution_raise_on_error = True
nb_merge_streams = True  # one block for what a cell prints
nb_execution_timeout = 600  # seconds of a cell
myst_enable_extensions = ["deflist"]
suppress_warnings = ["myst.header"]  # pages of the repository's root begin with their own headings
autodoc_typehints = "none"  # the docstrings describe the parameters
autodoc_member_order = "bysource"
# Types of other libraries, and records that are not part of the public API, have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]
html_theme = "furo"
html_title = "Espalier"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
smartquotes = False  # they would make one dash of the two of a flag
templates_path: list[str] = []

# Pages of the repository's root that are also pages here.
ROOT_PAGES = {
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../README.md": "index.md",
    "../SECURITY.md": "security.md",
}


def adapt_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Point links at pages of this site, and name files of the repository without a link. Notebooks
    (JSON) link only to pages.
    """
    if name.startswith("notebooks/"):
        return
    for path, page in ROOT_PAGES.items():
        source[0] = source[0].replace(f"]({path}", f"]({page}")
    link = r"\[([^\]]+)\]\(\.\./(?!benchmarks/(?:examples/|results/\w+\.svg))[^)]+\)"
    source[0] = re.sub(link, r"\1", source[0])


def adapt_included(app: Sphinx, path: object, parent: str, content: list[str]) -> None:
    """Do the same in the included pages of the repository's root."""
    text = re.sub(r"\]\(docs/", "](", content[0])
    for path_of_page, page in ROOT_PAGES.items():
        text = text.replace(f"]({path_of_page.removeprefix('../')}", f"]({page}")
    content[0] = text


FIELD = re.compile(r"^ *([A-Za-z_]\w*(?:, \w+)*): (.*)")


def list_fields(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Show the lines `name: text` of a docstring as a list."""
    shown = list[str]()
    for line in (line.replace("*", r"\*") for line in lines):
        if field := FIELD.match(line):
            shown += ["", f"* ``{field[1]}``: {field[2]}"]
        elif shown and shown[-1].startswith(("* ", "  ")) and line.strip():
            shown.append(f"  {line.strip()}")
        else:
            shown.append(line.strip())
    lines[:] = shown


def load_commands(app: Sphinx) -> None:
    """Import all commands and the help of their settings, since sphinx-click shows only what is
    already imported.
    """
    for group in (coordinator, edge_agent):
        context = click.Context(group)
        found = {name: group.get_command(context, name) for name in group.list_commands(context)}
        group.commands = {name: command for name, command in found.items() if command}
        for option in (option for command in group.commands.values() for option in command.params):
            if isinstance(option, ConfigOption) and (record := option.get_help_record(context)):
                option.help = record[1]


def spell_paths(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Show the path of a default as text."""
    lines[:] = [re.sub(r"PosixPath\('(.*)'\)", r"\1", line) for line in lines]


def mark_tests(app: Sphinx, document: nodes.document) -> None:
    """Give the names of tests a class, so that they can be broken into lines."""
    for literal in document.findall(nodes.literal):
        if "::test_" in literal.astext():
            literal["classes"].append("test")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", load_commands)
    app.connect("autodoc-process-docstring", list_fields)
    app.connect("doctree-read", mark_tests)
    app.connect("source-read", adapt_links)
    app.connect("sphinx-click-process-options", spell_paths)
    app.connect("include-read", adapt_included)
