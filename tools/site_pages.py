"""Gather the pages of the documentation site and write its reference; with ``--build``, make the site.

python tools/site_pages.py            pages to build/site/pages
python tools/site_pages.py --build    and from them HTML to build/site/html; warnings are errors
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from links import broken

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "site" / "pages"
MOVED = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages at the top of the repository, and what they are called in the site."""

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true", help="make the site, too")
    wanted = parser.parse_args().build
    gather(PAGES)
    code = build(PAGES) if wanted else 0
    if wanted and not code:
        print("build/site/html/index.html; to search in it: python3 -m http.server -d build/site/html")
    return code


def build(pages: Path) -> int:
    """Make the site of these pages; 0 where nothing was to be warned about and every link works."""
    config = pages.parent / "mkdocs.yml"
    line = [sys.executable, "-m", "mkdocs", "build", "--clean", "--quiet", "-f", str(config)]
    code = subprocess.run(line, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
    faults = [] if code else broken(pages.parent / "html")
    print(*faults, sep="\n", end="\n" if faults else "")
    return code or bool(faults)


def gather(pages: Path) -> None:
    """Write all pages anew, and the site's settings with every method in them beside their folder."""
    shutil.rmtree(pages.parent, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for name, new in MOVED.items():
        shutil.copy(ROOT / name, pages / new)
    for page in pages.rglob("*.md"):
        # Commands without a prompt: as "console" they would be shown in the grey of outputs.
        text = page.read_text(encoding="utf-8").replace("```console\n", "```sh\n")
        page.write_text(linked(text, page.relative_to(pages), pages), encoding="utf-8")
    written = {
        "reference/api.md": api_page(),
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "methods/index.md": methods_page(pages),
    }
    (pages / "notebooks").mkdir()
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        written[f"notebooks/{notebook.stem}.md"] = notebook_page(notebook, pages / "notebooks")
    for name, text in written.items():
        (pages / name).parent.mkdir(exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"docs_dir": str(pages), "site_dir": str(pages.parent / "html")}
    python = settings["plugins"][-1]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(ROOT / name) for name in python["options"]["extensions"]]
    settings["nav"] = [
        {name: listed(pages, inside) if str(inside).endswith("/") else inside}
        for entry in settings["nav"]
        for name, inside in entry.items()
    ]
    (pages.parent / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def listed(pages: Path, folder: str) -> list[str]:
    """All pages of a folder, its index first."""
    names = sorted(
        (page.name for page in (pages / folder).glob("*.md")), key=lambda name: (name != "index.md", name)
    )
    return [f"{folder}{name}" for name in names]


def notebook_page(file: Path, folder: Path) -> str:
    """A notebook as a page: texts, code and outputs. Its pictures are written to the page's folder."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for place, given in enumerate(cell.get("outputs", ())):
            data = given.get("data", {})
            if "image/png" in data:
                picture = folder / f"{file.stem}-{cell['id']}-{place}.png"
                picture.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![what this cell draws]({picture.name})")
            else:
                text = "".join(given.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join([*parts, f"This page is the notebook `examples/{file.name}` as it ran."]) + "\n"


def linked(text: str, page: Path, pages: Path) -> str:
    """A page's links as they are in the site."""
    moved = {name: new for name, new in MOVED.items() if new == str(page)}
    folder = Path() if moved else Path("docs") / page.parent

    def place(found: re.Match[str]) -> str:
        target, anchor = found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        parts: list[str] = []
        for part in (folder / target).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        inside = "/".join(parts)
        inside = MOVED.get(inside, inside.removeprefix("docs/"))
        inside = re.sub(r"^examples/(.*)\.ipynb$", r"notebooks/\1.md", inside)
        return f"]({'../' * (len(page.parts) - 1)}{inside}{anchor})"

    return LINK.sub(place, text)


def api_page() -> str:
    """Every public name, described by its docstring."""
    import proxyfl

    groups = {
        "Train": ["Federation", "Experiment", "resume", "Train", "Keep", "RayEngine"],
        "Data": ["Dataset", "load_dataset", "partition", "Partition", "Vectors", "register_dataset"],
        "Networks": ["register_model", "LoRA", "encode", "Encoder", "load_model"],
        "Methods and aggregation": ["Method", "Addon", "Recipe", "Shown", "setting", "Aggregator"],
        "Names of your own": ["register_method", "register_addon", "register_aggregator"],
        "Results": ["Run", "results"],
        "Errors": ["ProxyFLError"],
    }
    listed = {name for names in groups.values() for name in names}
    rest = [name for name in proxyfl.__all__ if name not in listed]
    lines = [
        "# Python",
        "",
        "On this page you can look up everything that `import proxyfl` offers; other names may change.",
        "",
    ]
    for group, names in {**groups, **({"More": rest} if rest else {})}.items():
        lines += [f"## {group}", ""]
        for name in names:
            lines += [f"::: proxyfl.{name}", ""]
    return "\n".join(lines)


def cli_page() -> str:
    """Every verb with its options, as ``--help`` has them."""
    import click
    import typer
    from rich.text import Text

    from proxyfl.cli import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield name, command
            for inner, sub in sorted(command.commands.items()):
                yield from walk(sub, f"{name} {inner}")
        else:
            yield name, command

    lines = [
        "# Command line",
        "",
        "On this page you can look up every command with its options, as `--help` prints them.",
        "",
    ]
    for name, command in walk(typer.main.get_command(app), "proxyfl"):
        context = click.Context(command, info_name=name)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        text = Text.from_markup((command.help or "").split("\f")[0].strip()).plain
        lines += [f"## {name}", "", "```sh", usage, "```", "", text, ""]
        rows = []
        for parameter in command.params:
            names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                names = f"`{parameter.make_metavar(context)}`"
            meaning = (getattr(parameter, "help", "") or "").replace("|", "\\|").replace("\n", " ")
            rows.append(f"| {names} | {meaning} |")
        if rows:
            lines += ["| option | meaning |", "|---|---|", *rows, ""]
        examples = [line.strip() for line in (command.epilog or "").splitlines() if "proxyfl " in line]
        if examples:
            lines += ["```sh", *(Text.from_markup(line).plain for line in examples), "```", ""]
    return "\n".join(lines)


def settings_page() -> str:
    """Every setting with its default, range and meaning."""
    from proxyfl.runs.settings import meanings

    lines = [
        "# Settings",
        "",
        "On this page you can look up every setting. Give them with `--set section.name=value`, in a TOML "
        "file, or as keyword arguments in Python (`section__name=value`). `proxyfl config show PRESET` "
        "prints the values of a preset.",
        "The parameters of each method are on [its page](../methods/index.md).",
        "",
    ]
    section = None
    for name, (default, span, meaning) in meanings("fedavg").items():
        if name.startswith("method.") and name != "method.name":  # those of the one method
            continue
        head = name.rpartition(".")[0] or "top level"
        if head != section:
            section = head
            lines += ["", f"## {head}", "", "| setting | default | range | meaning |", "|---|---|---|---|"]
        shown = "" if default in ("", ()) else f"`{default}`"
        cells = [f"`{name}`", shown, span.replace("|", "\\|"), meaning.replace("|", "\\|")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def methods_page(pages: Path) -> str:
    """The registered methods by group, each with its page."""
    from proxyfl.methods import registry

    groups: dict[str, list[Any]] = {}
    for recipe in sorted(registry.recipes(), key=lambda each: registry.shown(each.name).rank):
        groups.setdefault(registry.shown(recipe.name).group, []).append(recipe)
    lines = [
        "# Methods",
        "",
        "On this page you can find a method by what it does; `proxyfl methods show NAME` has its parameters.",
        "",
    ]
    for group, found in groups.items():
        lines += [f"## {group}", "", "| method | what it does |", "|---|---|"]
        for recipe in found:
            page = f"{registry.shown(recipe.name).page or recipe.name}.md"
            name = f"[`{recipe.name}`]({page})" if (pages / "methods" / page).exists() else f"`{recipe.name}`"
            lines.append(f"| {name} | {recipe.summary} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
