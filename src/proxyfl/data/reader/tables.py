"""Tables that say which image, vector or text has which label: ``labels.csv`` beside images, and
``table:FILE``.

Nothing is trusted: no path leads out of the table's folder.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from proxyfl.core.errors import DataError
from proxyfl.core.files import leads_into
from proxyfl.core.text import in_words
from proxyfl.data.files import memory_limit
from proxyfl.data.images import every_image, is_image
from proxyfl.data.medical import split_slice
from proxyfl.data.reader.listing import Entry, Listing, as_one_error, class_number, parse_keys, split_named

LABELS_FILE = "labels.csv"
KNOWN = ("label", "client", "split")
ROLES = ("file", "text", *KNOWN)
"""The columns that mean something; ``data.keys`` says which are called otherwise."""
CHOICES = ("features", "without")
"""In ``data.keys``: columns of vectors to take, or to leave out, joined by +."""
MAX_CSV = 256 << 20
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Table:
    """The columns of a table by name, and the line that each row stands in."""

    file: Path
    columns: dict[str, list[Any]]
    lines: Sequence[int]
    roles: dict[str, str]
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Names or patterns of columns that ``data.keys`` chooses."""
    named: frozenset[str] = frozenset()
    """The roles whose columns ``data.keys`` names."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, place: int) -> str:
        return f"{self.file}, line {self.lines[place]}"

    def texts(self, role: str) -> list[str] | None:
        """The cells of a column as text, by what it means; None where there is no such column."""
        column = self.columns.get(self.roles[role])
        return None if column is None else [_text(cell) for cell in column]


def _text(cell: Any) -> str:
    """A cell as text; what is missing, nan too, is empty, and a whole number has no point."""
    if cell is None or cell != cell:
        return ""
    text = str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()
    return "" if text.lower() == "nan" else text


def read_table(file: Path, keys: str = "") -> Table:
    """The whole table. A column that ``keys`` names must be there."""
    given = parse_keys(keys, (*ROLES, *CHOICES))
    chosen = {role: tuple(filter(None, given.pop(role, "").split("+"))) for role in CHOICES}
    read = _parquet if file.suffix.lower() == ".parquet" else _csv
    columns, lines = read(file)
    for role, name in given.items():
        if name not in columns:
            known = ", ".join(columns)[:300]
            raise DataError(f"{file} has no column '{name}' ({role} in data.keys); its columns are {known}")
    roles = {role: given.get(role, role) for role in ROLES}
    return Table(file, columns, lines, roles, **chosen, named=frozenset(given))


def _csv(file: Path) -> tuple[dict[str, list[Any]], Sequence[int]]:
    if file.stat().st_size > MAX_CSV:
        raise DataError(f"{file} is larger than {in_words(MAX_CSV)}; that is not a table of labels")
    try:
        text = file.read_text(encoding="utf-8-sig")
        delimiter = _delimiter(text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        head = [cell.strip() for cell in next(reader, [])]
        rows, lines = [], []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(head):
                wanted = ",".join(head)[:80]
                raise DataError(f"{file}, line {reader.line_num}: {len(cells)} cells instead of {wanted}")
            rows.append(cells)
            lines.append(reader.line_num)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a CSV in UTF-8: {error}; save it so") from None
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{file} has two columns called '{twice}'; rename one")
    columns = {name: [row[place].strip() for row in rows] for place, name in enumerate(head)}
    if delimiter == ";":  # spreadsheets that write so have a comma in their numbers
        columns = {name: [_with_point(cell) for cell in cells] for name, cells in columns.items()}
    return columns, lines


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if COMMA_NUMBER.fullmatch(cell) else cell


def _delimiter(text: str) -> str:
    """A comma, unless the first line has none and does have a semicolon or a tab, as spreadsheets write."""
    head = text.partition("\n")[0]
    return next((sign for sign in ",;\t" if sign in head), ",")


def _parquet(file: Path) -> tuple[dict[str, list[Any]], Sequence[int]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(
            f"{file}: reading parquet needs pyarrow; install proxyfl[parquet], or save the table as CSV"
        ) from None
    try:
        with ParquetFile(file) as opened:
            groups = range(opened.metadata.num_row_groups)
            needed = sum(opened.metadata.row_group(group).total_byte_size for group in groups)
            if needed > memory_limit():
                raise DataError(f"{file} holds {in_words(needed)}, too much for this machine's memory")
            columns = opened.read().to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file} cannot be read as parquet ({reason}); replace it") from None
    count = len(next(iter(columns.values()), []))
    return columns, range(1, count + 1)


def list_beside(file: Path, classes: Sequence[str] | None = None, keys: str = "") -> Listing:
    """Images below a table's folder: those it names with a label first, in its order, then all the others."""
    table = read_table(file, keys)
    if table.texts("file") is None or table.texts("label") is None:
        head = ",".join(table.columns)[:80]
        raise DataError(f"{file} must begin with the line 'file,label', not '{head}'")
    root = file.parent
    images, ignored = every_image(root, root)
    known = {path.relative_to(root).as_posix(): path for path in images}
    named: dict[str, Entry] = {}
    faults: list[str] = []
    for place, name, entry in entries(table, classes, faults):
        key = safe_relative(name, table.where(place))
        if (sliced := _slice_of(key, known)) is not None:
            known[key] = sliced
        if key not in known:
            faults.append(f"{table.where(place)}: there is no image '{name}' below {root}")
            continue
        if key in named:
            faults.append(f"{table.where(place)}: '{name}' is named twice; keep one line")
        named[key] = Entry(known[key], entry.label, entry.client, entry.split)
    labelled = [entry for entry in named.values() if entry.label is not None]
    whole = {split_slice(Path(key))[0].as_posix() for key in named if split_slice(Path(key))[1] is not None}
    known = {key: path for key, path in known.items() if key in named or key not in whole}
    rest = [named.get(key, Entry(path)) for key, path in known.items()]
    without = [entry for entry in rest if entry.label is None]
    others = ignored if file.name.startswith(".") else ignored - 1  # the table itself is meant to be there
    if faults and classes is None:
        raise as_one_error(faults)
    return Listing(root, "csv", (*labelled, *without), others, tuple(faults))


def _slice_of(key: str, known: dict[str, Path]) -> Path | None:
    """The slice that a name means, where it is that of a volume's slice and not a file's own."""
    file, place = split_slice(Path(key))
    whole = known.get(file.as_posix()) if place is not None and key not in known else None
    return None if whole is None else whole.with_name(f"{whole.name}#{place}")


def list_table(table: Table) -> Listing:
    """The images that a table names, in its order, and no others."""
    root, home = table.file.parent, table.file.parent.resolve()
    found: list[Entry] = []
    seen: set[str] = set()
    for place, name, entry in entries(table, None, []):
        key = safe_relative(name, table.where(place))
        path = root / key
        if key in seen:
            raise DataError(f"{table.where(place)}: '{name}' is named twice; keep one line")
        if not (path if path.is_file() else split_slice(path)[0]).is_file() or not is_image(path):
            raise DataError(f"{table.where(place)}: there is no image '{name}' below {root}")
        if not leads_into(path, home):
            raise DataError(f"{table.where(place)}: '{name}' is a link that leads out of {root}; copy it")
        seen.add(key)
        found.append(Entry(path, entry.label, entry.client, entry.split))
    return Listing(root, "table", tuple(found))


def entries(
    table: Table, classes: Sequence[str] | None, faults: list[str]
) -> Iterator[tuple[int, str, Entry]]:
    """(row, file's name, what is known of it) of every row. Labels of no class are noted as ``faults``."""
    empty = [""] * len(table)
    files, labels, clients, splits = (table.texts(role) or empty for role in ("file", *KNOWN))
    for place, name in enumerate(files):
        label, where = labels[place], table.where(place)
        try:
            if label and classes is not None:
                class_number(label, classes, f"{where}, file '{name}'")
        except DataError as fault:
            faults.append(str(fault))
            label = ""
        split = split_named(splits[place], where)
        yield place, name, Entry(Path(), label or None, clients[place] or None, split)


def safe_relative(name: str, where: str) -> str:
    """A file's name as a plain relative path; whatever could lead elsewhere is refused."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
        raise DataError(f"{where}: '{name}' must be a path below the CSV's folder, with / and without ..")
    return path.as_posix()
