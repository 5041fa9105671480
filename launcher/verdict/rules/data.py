"""Data: its loading, its files, and checkpoints."""

from launcher.verdict.cause import Cause
from launcher.verdict.rules.rule import Weight, rows

RULES = (
    *rows(
        Cause.DATA_LOADER_WORKER_DIED,
        Weight.SURE,
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        r"one of its workers has died|Pin memory thread exited unexpectedly",
    ),
    *rows(
        Cause.DATA_STALL,
        Weight.LIKELY,
        r"DataLoader timed out after \d+ seconds",
        r"nfs: server \S+ not responding|lustre.*(?:[Cc]onnection .*lost|timed out|evicted)",
        r"[Dd]ata(?:loader| loading)? (?:is )?(?:stall|slow|the bottleneck)|Stale file handle",
        r"blocked for more than \d+ seconds",
    ),
    *rows(
        Cause.BAD_DATA,
        Weight.SURE,
        r"PytorchStreamReader failed (?!.*locating file constants)|invalid magic number; corrupt",
        r"unexpected EOF|UnpicklingError|image file is truncated|cannot identify image file",
        r"central directory|Ran out of input|JSONDecodeError|UnicodeDecodeError",
        r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|BadZipFile|BadGzipFile",
        r"CRC (?:check )?failed|checksum (?:mismatch|failed)|[Cc]orrupt(?:ed)? (?:file|record|data|JPEG)",
        r"tarfile\.ReadError|Parquet magic bytes not found|ArrowInvalid|Weights only load failed",
        r"^zlib\.error|Compressed file ended before|_pickle\.Unpickl|truncated file",
    ),
)
