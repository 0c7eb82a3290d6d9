"""The history of a run on disk: a file to which every checkpoint adds its new rows.

A checkpoint then costs as much in round 4,000 as in round 4. It holds the name of the
file, the number of bytes that belong to it, and their hash; what a later or unfinished
checkpoint has written after them does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from ..core.history import History
from ..core.naming import plain

TABLES = ("measured", "traffic", "absences")
"""The tables of a `History` that grow."""


class Journal:
    """The rows of one history in a file; a new one overwrites it.

    path:  the file, beside the checkpoints.
    """

    def __init__(self, path: Path):
        self.path = path
        self.size, self.digest = 0, hashlib.sha256()
        self.counts = dict.fromkeys(TABLES, 0)

    @classmethod
    def read(cls, folder: Path, place: dict) -> tuple[Journal, dict[str, list[tuple]]]:
        """The journal as of a checkpoint, and its rows by table.

        place:  what ``append`` returned.
        Raises ValueError or OSError when the file is damaged.
        """
        name, size = str(place["file"]), int(place["bytes"])
        if not name or Path(name).name != name:
            raise ValueError(f"expected a file beside the checkpoint, found {name!r}")
        journal = cls(folder / name)
        content = journal.path.read_bytes()[:size]
        if not 0 < size == len(content):
            found = len(content)
            raise ValueError(f"expected {size:,} bytes in {name}, found {found:,}")
        journal.size = size
        journal.digest.update(content)
        if journal.digest.hexdigest() != place["sha256"]:
            raise ValueError(f"{name} was changed: its content has another hash")
        rows: dict[str, list[tuple]] = {table: [] for table in TABLES}
        for line in content.splitlines():
            for table, added in json.loads(line).items():
                rows[table] += map(tuple, added)
        journal.counts = {table: len(found) for table, found in rows.items()}
        return journal, rows

    def append(self, history: History) -> dict:
        """Write the rows since the last call; return the file's name, size and hash.

        Raises OSError when that is impossible; the next call tries again.
        """
        tables = {table: getattr(history, table) for table in TABLES}
        added = {t: rows[self.counts[t] :] for t, rows in tables.items()}
        line = json.dumps(added, default=plain).encode() + b"\n"
        try:
            with self.path.open("r+b" if self.size else "wb") as file:
                file.seek(self.size)
                file.write(line)
                file.truncate()  # an unfinished checkpoint may have written more
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            if not self.size:
                self.path.unlink(missing_ok=True)
            raise
        self.size += len(line)
        self.digest.update(line)
        self.counts = {table: len(rows) for table, rows in tables.items()}
        sha256 = self.digest.hexdigest()
        return {"file": self.path.name, "bytes": self.size, "sha256": sha256}
