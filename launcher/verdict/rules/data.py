"""Data: its loading, its files, and checkpoints."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, SURE, Meanings

MEANINGS: Meanings = {
    (FailureCause.DATA_LOADER_WORKER_DIED, SURE): (
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        r"one of its workers has died|Pin memory thread exited unexpectedly",
    ),
    (FailureCause.DATA_STALL, LIKELY): (
        r"DataLoader timed out after \d+ seconds",
        r"nfs: server \S+ not responding|lustre.*(?:[Cc]onnection .*lost|timed out|evicted)",
        r"[Dd]ata(?:loader| loading)? (?:is )?(?:stall|slow|the bottleneck)|Stale file handle",
        r"blocked for more than \d+ seconds",
    ),
    (FailureCause.BAD_DATA, LIKELY): (r"JSONDecodeError|UnicodeDecodeError",),
    (FailureCause.BAD_DATA, SURE): (
        r"PytorchStreamReader failed (?!.*locating file constants)|invalid magic number; corrupt",
        r"unexpected EOF|UnpicklingError|image file is truncated|cannot identify image file",
        r"central directory|Ran out of input",
        r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|BadZipFile|BadGzipFile",
        r"CRC (?:check )?fail|checksum (?:mismatch|failed)|[Cc]orrupt(?:ed)? (?:file|record|data)",
        r"tarfile\.ReadError|Parquet magic bytes not found|ArrowInvalid|Weights only load failed",
        r"^zlib\.error|Compressed file ended before|_pickle\.Unpickl|truncated file",
    ),
}
