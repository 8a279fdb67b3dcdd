"""Find the files of a log, and read them in decompressed blocks of whole lines."""

import bz2
import codecs
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.data.dataset_files import DESCRIPTION, STATE_FEATURES
from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError
from lockstep.record.run_dir import METRICS_FILE, RUN_FILE

COMPRESSIONS = (".gz", ".bz2", ".zst")
_KINDS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}
_BEGINNINGS = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}
"""The first bytes of compressed files."""
_LOOKED_AT = 1000
_READ_BYTES = 1 << 18
_MINARI_NAMESPACE = "namespace_metadata.json"
"""The description of a folder of Minari datasets."""


def find_files(paths: Sequence[Path]) -> tuple[list[Path], set[Path]]:
    """Find the files of a log, and the set of those in folders.

    Folders are searched at any depth, in the order of names; names that begin with `_` or `.` (`_SUCCESS`, checksums)
    are skipped. The folder of a Minari dataset counts as one file, also below a folder.

    Raises:
        ConfigError: a path does not exist, no file is a log, or one is there twice.
    """
    files, in_folders = list[Path](), set[Path]()
    for path in paths:
        if is_minari(path):
            files.append(path)
        elif (path / DESCRIPTION).is_file() and (path / STATE_FEATURES).is_file():
            raise ConfigError(f"{path} is prepared data, not a log; name what it was prepared from")
        elif (path / RUN_FILE).is_file() and (path / METRICS_FILE).is_file():
            raise ConfigError(
                f"{path} is a run directory, not a log; its policy makes one: lockstep offline record "
                f"{shlex.quote(str(path))} --out log.jsonl"
            )
        elif path.is_dir():
            found = _logs_in(path)
            if not found:
                raise ConfigError(
                    f"{path} contains no log; a folder needs files named *.jsonl, *.json, *.parquet or *.csv, or "
                    "Minari datasets"
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
    if len(set(files)) < len(files):
        twice = next(path for path in files if files.count(path) > 1)
        raise ConfigError(f"{twice} is named twice, or lies in a folder that is named, too; name it once")
    return files, in_folders


def is_minari(path: Path) -> bool:
    """Whether a path is a Minari dataset: `minari:NAME`, or its folder."""
    return str(path).startswith("minari:") or (path / "data" / "metadata.json").is_file()


def kind_of(path: Path) -> str:
    """`json`, `csv`, `parquet` or `minari`, by the file name. Raises `ConfigError` for other names."""
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
    """Read a file, decompressed by its suffix, as pairs of a block and the bytes read from the file for it.

    Raises:
        ConfigError: the file is unreadable, damaged or truncated, or its name is not that of its compression.
    """
    start = _decompressor(path)
    stream: Any = None
    done = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                if not done:
                    _check_name(path, block)
                done += len(block)
                if start is None:
                    yield block, len(block)
                    continue
                consumed = len(block)
                while block:  # a file may hold several compressed streams
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
    except Exception as error:  # errors of zlib and zstandard
        if type(error).__module__ not in ("zlib", "zstd", "zstandard", "zstandard.backend_c"):
            raise
        raise ConfigError(f"{path} is damaged ({error}); copy it again") from error


class LineBlocks:
    """A file in blocks of whole lines.

    Attributes:
        size: approximate bytes of the next block; may be changed at any time.
        done: bytes of the file read so far.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size, self.done, self._path = size, 0, path

    def __iter__(self) -> Iterator[bytes]:
        """Blocks that end with a newline, except perhaps the last one."""
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


def _logs_in(folder: Path) -> list[Path]:
    """The logs below a folder, in the order of names."""
    paths = list(folder.rglob("*"))
    datasets = {path for path in paths if is_minari(path)}
    files = (path for path in paths if path.is_file() and path.name != _MINARI_NAMESPACE)
    found = [*datasets, *(path for path in files if datasets.isdisjoint(path.parents))]
    return sorted(path for path in found if _is_log(path, folder))


def _is_log(path: Path, folder: Path) -> bool:
    if any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
        return False
    try:
        kind_of(path)
    except ConfigError:
        return False
    return True


def _check_name(path: Path, first: bytes) -> None:
    """Refuse a file whose first bytes are of another compression than its name, as after a download that unpacks."""
    said = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    plain = path.with_suffix("") if said else path
    found = next((name for name, begin in _BEGINNINGS.items() if begin.match(first)), "")
    if found and found != said:
        raise ConfigError(f"{path} is compressed as {found}; rename it to {plain.name}{found}")
    if said and not found and _is_text(first[:_LOOKED_AT]):
        raise ConfigError(f"{path} is not compressed, though its name ends in {said}; rename it to {plain.name}")


def _is_text(part: bytes) -> bool:
    """Whether bytes may be the beginning of a text, which ends anywhere."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(part)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _decompressor(path: Path) -> Any:
    """A factory of decompressors for one stream; None for uncompressed files."""
    suffix = path.suffix.lower()
    if suffix == ".bz2":
        return bz2.BZ2Decompressor
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=31)
    if suffix == ".zst":
        zstandard = import_optional("zstandard", "offline")
        return lambda: zstandard.ZstdDecompressor().decompressobj()
    return None
