"""The tables of a pack while it trains: float64 numbers of all lanes, step by step, and one Parquet file in the end."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.store.files import replacing
from bench.store.tables import check_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROW_GROUP = 10_000
"""Rows that are read together, at least one run's: with 50 000 a run of 1000 steps takes 7 ms to read, with these 3."""


class RawTable:
    """A table of all lanes that grows in one file: a line with the names, then rows of float64: step, values (L, M)."""

    def __init__(self, path: Path, lanes: int) -> None:
        self.path, self.lanes = path, lanes
        self._file = path.open("a+b")
        self._file.seek(0)
        header = self._file.readline()
        try:
            self.names = tuple(json.loads(header)) if header.endswith(b"\n") else ()
        except (ValueError, TypeError):  # damaged
            self.names = ()
        self._offset = len(header) if self.names else 0
        self._cut(len(self._rows()))  # the last row may be torn
        self.last_step = int(max(self._rows()[-1:, 0], default=0))

    def append(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Add rows; the names head the file."""
        import numpy as np

        if not names:
            return
        if not self.names:
            self.names, header = tuple(names), json.dumps(names)
            padding = " " * (-(len(header) + 1) % 8)  # so that the numbers are aligned
            self._offset = self._file.write(f"{header}{padding}\n".encode())
        check_names(self.path, self.names, names)
        rows = np.empty((len(steps), self._width))
        rows[:, 0], rows[:, 1:] = steps, values.reshape(len(steps), self._width - 1)
        self._file.write(rows.data)
        self._file.flush()
        self.last_step = max(steps, default=self.last_step)

    def truncate(self, steps: int) -> None:
        """Forget the rows after this step; what is added comes after it."""
        self._cut(int(self._rows()[:, 0].searchsorted(steps, "right")))
        self.last_step = steps

    def close(self) -> None:
        """Close the file; it stays."""
        self._file.close()

    def end(self, lanes: Sequence[tuple[str, int, int]]) -> None:
        """Close it as Parquet: the rows of each lane (run id, lane, last step), in this order; none if it was not begun."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.close()
        if not self.names:
            return
        rows = self._rows()
        steps, values = rows[:, 0].astype(np.int64), rows[:, 1:].reshape(-1, self.lanes, len(self.names))
        types = [pa.dictionary(pa.int32(), pa.string()), pa.int64(), *[pa.float64()] * len(self.names)]
        schema = pa.schema(zip(("run_id", "step", *self.names), types, strict=True))
        options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["run_id"]}
        with (
            replacing(self.path.with_suffix(".parquet")) as temporary,
            pq.ParquetWriter(temporary, schema, **options) as file,
        ):
            at_once = max(1, ROW_GROUP // max(1, len(rows)))
            for first in range(0, len(lanes), at_once):
                ids, numbers, lasts = zip(*lanes[first : first + at_once], strict=True)
                ends = steps.searchsorted(lasts, "right")
                own = np.concatenate([values[:n, lane] for n, lane in zip(ends, numbers, strict=True)])
                run_ids = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(ids), dtype=np.int32), ends), ids)
                columns = [run_ids, np.concatenate([steps[:n] for n in ends])]
                columns += [pa.array(column, mask=~np.isfinite(column)) for column in own.T.copy()]
                file.write_table(pa.table(columns, schema=schema))

    @property
    def _width(self) -> int:
        return 1 + self.lanes * len(self.names)

    def _rows(self) -> "NDArray[np.float64]":
        """The whole rows in the file, which stay there until they are looked at."""
        import numpy as np

        n = (self.path.stat().st_size - self._offset) // (8 * self._width) if self.names else 0
        shape = (n, self._width)
        return np.memmap(self.path, np.float64, "r", self._offset, shape) if n else np.empty(shape)

    def _cut(self, rows: int) -> None:
        self._file.truncate(self._offset + 8 * self._width * rows)
