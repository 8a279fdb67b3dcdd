"""Writing a log in the schema of `lockstep.data.logs.format`: JSON lines or Parquet."""

import bz2
import contextlib
import gzip
import shutil
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from lockstep.data.logs.files import kind_of
from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError, RunError

Row = Mapping[str, Any]
"""One decision: columns of the schema, maps as dicts; unknown columns are omitted or None."""
_PART_ROWS = 50_000  # Parquet rows that are buffered in memory
_ZSTD_LEVEL = 6


class LogWriter:
    """Writes rows to a temporary file and renames it when complete; an error leaves nothing behind.

    The path ends in `.jsonl` or `.json` (also with .gz, .bz2, .zst), with a row in each line, or in `.parquet`, where
    maps are of the type MAP.

    Raises:
        ConfigError: the file exists, has an unsupported suffix, or cannot be created.
    """

    def __init__(self, path: Path) -> None:
        try:
            kind = kind_of(path)
        except ConfigError:
            kind = ""
        if kind not in ("json", "parquet"):
            raise ConfigError(f"{path}: a log is written as .jsonl (also with .gz, .bz2 or .zst) or as .parquet")
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another name, or remove it")
        self.path, self.num_rows = path, 0
        self._temporary = path.with_name(f".{path.name}.part")
        self._buffered: list[Row] = []
        self._parts: list[Path] = []
        self._file: Any = None
        if kind == "parquet":
            import_optional("polars", "offline")
        elif path.suffix.lower() == ".zst":
            import_optional("zstandard", "offline")
        self._open_files = contextlib.ExitStack()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "parquet":
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary.mkdir()
            else:
                raw = self._open_files.enter_context(self._temporary.open("wb"))
                self._file = self._open_files.enter_context(_compressor(raw, path.suffix.lower()))
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}); choose another place") from error

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows with finite numbers. Raises `RunError` if they cannot be written."""
        self.num_rows += len(rows)
        with self._errors_named():
            if self._file is not None:
                self._file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
                return
            self._buffered.extend(rows)
            if len(self._buffered) >= _PART_ROWS:
                self._write_part()

    def close(self) -> None:
        """Complete the file and rename it. Raises `RunError` if it cannot be written."""
        with self._errors_named():
            if self._file is not None:
                self._open_files.close()
                self._temporary.rename(self.path)
                return
            import polars as pl

            if self._buffered or not self._parts:
                self._write_part()
            whole = self._temporary / "whole.parquet"
            pl.scan_parquet(self._parts).sink_parquet(whole)
            whole.rename(self.path)
            shutil.rmtree(self._temporary)

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._open_files.close()
        if self._file is not None:
            self._temporary.unlink(missing_ok=True)
        else:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @contextlib.contextmanager
    def _errors_named(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path} could not be written: {error.strerror or error}") from error
        except Exception as error:  # on a full disk polars also raises errors that are no OSError
            if self._file is not None or type(error).__module__.partition(".")[0] != "polars":
                raise
            raise RunError(f"{self.path} could not be written: {error}; is the disk full?") from error

    def _write_part(self) -> None:
        self._parts.append(self._temporary / f"{len(self._parts):05}.parquet")
        _table(self._buffered).write_parquet(self._parts[-1])
        self._buffered = []


def _compressor(raw: BinaryIO, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=raw, mtime=0)  # equal rows give equal bytes
    if suffix == ".bz2":
        return bz2.BZ2File(raw, "wb")
    if suffix == ".zst":
        return import_optional("zstandard", "offline").ZstdCompressor(level=_ZSTD_LEVEL).stream_writer(raw)
    return contextlib.nullcontext(raw)


def _table(rows: Sequence[Row]) -> Any:
    """Rows as a table with all columns of the schema."""
    import polars as pl

    from lockstep.data.logs.column_names import ACTIONS, FLAGS, LISTS, MAPS, NUMBERS, SCHEMA

    parametric = any(isinstance(row.get("action"), Mapping) for row in rows)
    entry = pl.List(pl.Struct({"key": pl.String, "value": pl.Float64}))
    kinds: dict[str, Any] = {"mdp_id": pl.String, "sequence_number": pl.Int64}
    kinds |= dict.fromkeys(NUMBERS, pl.Float64) | dict.fromkeys(FLAGS, pl.Boolean) | dict.fromkeys(MAPS, entry)
    kinds |= dict.fromkeys(ACTIONS, entry if parametric else pl.String)
    kinds |= dict.fromkeys(LISTS, pl.List(entry) if parametric else pl.List(pl.String))
    table = pl.DataFrame([pl.Series(name, [_plain(row.get(name)) for row in rows], kinds[name]) for name in SCHEMA])
    made: Any = getattr(pl, "Map", None)
    if made is None:  # older versions of polars write lists of key and value
        return table
    as_map = made(pl.String, pl.Float64)
    table = table.with_columns(pl.col(name).cast(as_map) for name, kind in kinds.items() if kind == entry)
    return table.with_columns(pl.col(name).cast(pl.List(as_map)) for name in LISTS if parametric)


def _plain(value: Any) -> Any:
    """Maps, also within lists, as lists of key and value."""
    if isinstance(value, Mapping):
        return [{"key": key, "value": one} for key, one in cast("Mapping[str, float]", value).items()]
    return [_plain(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value
