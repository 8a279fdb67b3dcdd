"""Find the files of a log, and read them in decompressed blocks of whole lines."""

import bz2
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError

COMPRESSIONS = (".gz", ".bz2", ".zst")
_KINDS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}
_READ_BYTES = 1 << 18


def find_files(paths: Sequence[Path]) -> tuple[list[Path], set[Path]]:
    """All files of a log: those named, and those in folders sorted by name, at any depth; and which stood in folders.

    What begins with `_` or `.` in a folder is no log (`_SUCCESS`, checksums). A folder that is a Minari dataset is
    taken as a whole.

    Raises:
        ConfigError: nothing is there, or there are no files that are logs.
    """
    files, in_folders = list[Path](), set[Path]()
    for path in paths:
        if is_minari(path):
            files.append(path)
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file() and _is_log(file.relative_to(path)))
            if not found:
                raise ConfigError(
                    f"{path} contains no log; a folder needs files named *.jsonl, *.json, *.parquet or *.csv"
                )
            files.extend(found)
            in_folders.update(found)
        elif path.exists():
            kind_of(path)
            files.append(path)
        else:
            raise ConfigError(f"{path} does not exist; give a log file, or a folder of them")
    if not files:
        raise ConfigError("no log was named; give a log file, or a folder of them")
    return files, in_folders


def is_minari(path: Path) -> bool:
    """Whether this names a Minari dataset: `minari:NAME`, or the folder of one."""
    return str(path).startswith("minari:") or (path / "data" / "metadata.json").is_file()


def kind_of(path: Path) -> str:
    """`json`, `csv`, `parquet` or `minari`, by the name. Raises `ConfigError` for any other name."""
    if is_minari(path):
        return "minari"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    kind = _KINDS.get("".join(suffixes[-2:-1] if compressed else suffixes[-1:]))
    if kind is None or (compressed and kind == "parquet"):
        raise ConfigError(
            f"{path} does not have the name of a log: it must end in .jsonl, .json, .csv or .tsv (each also with "
            ".gz, .bz2 or .zst) or in .parquet"
        )
    return kind


def read_bytes(path: Path) -> Iterator[tuple[bytes, int]]:
    """The bytes of a file, decompressed by its suffix, and how many were read of the file itself for them.

    Raises:
        ConfigError: the file cannot be read, is damaged, or ends before its compressed data does.
    """
    start = _decompressor(path)
    stream: Any = None
    done = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                done += len(block)
                if start is None:
                    yield block, len(block)
                    continue
                consumed = len(block)
                while block:  # files of several compressed streams, one after another, are usual
                    stream = start() if stream is None or stream.eof else stream
                    yield stream.decompress(block), consumed
                    block, consumed = (stream.unused_data if stream.eof else b""), 0
        if stream is not None and not stream.eof:
            raise EOFError
    except EOFError:
        raise ConfigError(
            f"{path} is cut off: its compressed data does not end after {done} bytes; copy it again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error}); is it damaged? Copy it again") from error
    except Exception as error:  # zlib's and zstandard's own
        if type(error).__module__ not in ("zlib", "zstd", "zstandard", "zstandard.backend_c"):
            raise
        raise ConfigError(f"{path} is damaged ({error}); copy it again") from error


class LineBlocks:
    """A file in blocks of whole lines.

    Attributes:
        size: about how many bytes the next block has; may be changed at any time.
        done: bytes read of the file so far.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size, self.done, self._path = size, 0, path

    def __iter__(self) -> Iterator[bytes]:
        """Blocks that end with a line, the last one of the file with or without its newline."""
        parts, held = list[bytes](), 0
        for block, consumed in read_bytes(self._path):
            self.done += consumed
            parts.append(block)
            held += len(block)
            if held < self.size:
                continue
            text = b"".join(parts)
            while held >= self.size:
                end = text.rfind(b"\n", 0, self.size) + 1 or text.find(b"\n") + 1
                if not end:  # one line longer than a block
                    break
                yield text[:end]
                text = text[end:]
                held = len(text)
            parts = [text]
        if text := b"".join(parts):
            yield text


def _is_log(path: Path) -> bool:
    if any(part.startswith(("_", ".")) for part in path.parts):
        return False
    try:
        kind_of(path)
    except ConfigError:
        return False
    return True


def _decompressor(path: Path) -> Any:
    """What makes a decompressor for one compressed stream; `None` for files as they are."""
    suffix = path.suffix.lower()
    if suffix == ".bz2":
        return bz2.BZ2Decompressor
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=31)
    if suffix == ".zst":
        zstandard = import_optional("zstandard", "offline")
        return lambda: zstandard.ZstdDecompressor().decompressobj()
    return None
