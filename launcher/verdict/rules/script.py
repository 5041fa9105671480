"""The script, its data and its versions: exceptions, damaged files, and how processes end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import HINT, LIKELY, SIGN, SURE, Meaning, Meanings
from launcher.verdict.scan import LogLine

_RAISED = r"^[\w.]*(?:Error|Exception|Interrupt)\b.*"
MEANINGS: Meanings = {
    (FailureCause.SCRIPT_ERROR, SURE): (
        r"^(?:SyntaxError|IndentationError|TabError): |partially initialized module",
        r"Expected to have finished reduction in the prior|to mark a variable ready only once",
        r"does not require grad and does not have a grad_fn|backward through the graph a second",
        r"needed for gradient computation has been modified by an inplace operation",
        r"Duplicate GPU detected : rank \d+ and rank \d+ both on",
        r"[Dd]efault process group has not been initialized|initialize the default process group t",
        r"found at least two devices|Input type \(.*\) and weight type \(.*\) should be the same",
        r"No backend type associated with device type|Tensors must be (?:CUDA and dense|contiguou)",
    ),
    (FailureCause.SCRIPT_ERROR, SIGN): (r"task \d+: Exited with exit code|ChildFailedError",),
    (FailureCause.MISSING_MODULE, SURE): (
        r"^(?:ModuleNotFoundError: |\S*python[\d.]*: )?(?:Error while finding module specification"
        r" for .*|No module named) '?(?P<package>\w+)",
        r"^ImportError: (?!.*(?:version `|static TLS|numpy|compiled (?:using|against)))",
        r"error while loading shared libraries|: undefined symbol: |cannot open shared object",
        r"DistributionNotFound|VersionConflict|PackageNotFoundError|has no torch\b",
        r"Fatal Python error: init_(?:fs|import|sys)",
    ),
    (FailureCause.VERSION_MISMATCH, SURE): (
        r"(?:NCCL|torch|CUDA|Python|driver|cuDNN) .*versions? .*(?:mismatch|differ|incompatib)",
        r"mismatch.*(?:NCCL|torch|Python) version|version mismatch.*(?:between|across)",
        r"the nodes differ in|nodes have different|torch is \S+ on most hosts, but",
        r"cuDNN version incompatib|were compiled with different CUDA|binary incompatibility",
        r"CUDA version \(.*\) mismatches the version that was used to compile PyTorch",
        r"compiled (?:using NumPy 1|against (?:NumPy )?(?:ABI|API) version)|static TLS block",
        r"Couldn't load custom C\+\+ ops|operator \S+::\w+ does not exist",
        r"version `(?:GLIBC|GLIBCXX|CXXABI|GOMP)_\S+' not found|unsupported pickle protocol",
        r"maximum supported version for reading is|requires a different Python",
        r"NCCL WARN .*(?:magic|unexpected .*(?:size|version))",
        r"bootstrap.*received \d+ bytes instead of|Message truncated : received \d+ bytes",
    ),
    (FailureCause.CODE_MISMATCH, SURE): (
        r"(?:code|config(?:uration)?) (?:hash|version)?s? ?(?:differs?|mismatch).*(?:rank|node)",
        r"(?:rank|node)s? .*(?:run|have) (?:different|other) (?:code|config)",
    ),
    (FailureCause.PICKLING, SURE): (
        r"(?:can(?:'t|not)|can not|could not) pickle|(?<!Un)PicklingError",
        r"(?:Can't|cannot) get (?:local object|attribute '\w+' on <module '__(?:mp_)?main__')",
    ),
    (FailureCause.BAD_DATA, SURE): (
        r"PytorchStreamReader failed (?!.*locating file constants)|storage has wrong byte size",
        r"invalid magic number; corrupt|invalid load key|UnpicklingError|unexpected EOF",
        r"invalid header or archive is corrupted|failed finding central directory|Ran out of input",
        r"Weights only load failed|Failed to interpret file .* as a pickle|No data left in file",
        r"image file is truncated|cannot identify image|broken (?:data stream|PNG)|moov atom not f",
        r"SafetensorError(?!.*(?:No such|StorageFull))|HeaderTooLarge|InvalidHeaderDeserialization",
        r"MetadataIncompleteBuffer|BadZipFile|BadGzipFile|not a gzip|tarfile\.ReadError",
        r"^(?:zlib|lzma|_?csv)\.\w*Error|Compressed file ended before|while decompressing",
        r"CRC (?:check )?fail|checksum\w* (?:mismatch|failed|does not match)|DataLossError",
        r"corrupt(?:ed)? (?:file|record|data|image|shard)|(?:file|record|shard) is corrupt",
        r"truncated (?:file|data|record)|file signature not found|mmap length is greater than file",
        r"Parquet magic bytes|ArrowInvalid|deserialize thrift|Invalid data found when processing",
    ),
    (FailureCause.BAD_DATA, LIKELY): (
        r"JSONDecodeError|UnicodeDecodeError|TOMLDecodeError|ScannerError|^yaml\.\S*Error",
        r"Error tokenizing data|EmptyDataError|configparser\.\w+Error",
    ),
    (FailureCause.DISK_FULL, LIKELY): (r"No usable temporary directory",),
    (FailureCause.MISSING_FILE, SURE): (
        r"^(?!.*No usable temp).*(?:FileNotFoundError|(?:Is|Not)ADirectoryError|\[Errno 2\])",
        r"Parent directory \S+ does not exist|file into a non-existent directory",
        r"is not a local folder|does not appear to have a file|LocalEntryNotFound|RepositoryNotFo",
        r"^(?:OSError|\S*HFValidationError): .*Can't load|DatasetNotFoundError|errno = 2\b",
        r"unable to find the specified executable|could not access or execute an executable",
        r"^(?:error: |  )\S+: has no (?:/|python)|^sbatch: error: Unable to open file",
    ),
    (FailureCause.MISSING_FILE, LIKELY): (
        r"No such file or directory|(?:command )not found$|: not found$|NoSuch(?:Key|Bucket)",
        r"Lmod has detected the following error|Unable to locate a modulefile",
        r"not found on this machine|; no such file|is not the folder of the other hosts",
        r"Couldn't find any class folder|Found 0 files in|pathspec '.*' did not match",
    ),
    (FailureCause.PERMISSION, SURE): (
        r"^PermissionError: |\[Errno (?:1|13|30)\]|Read-only file system|\bE(?:ACCES|ROFS)\b",
        r": Permission denied$|errno = (?:13|30)\b|errno: 13\b",
    ),
    (FailureCause.WRONG_SHAPES, SURE): (
        r"mat1 and mat2 |mat1 dim 1 must match mat2|size mismatch for \S+: copying a param",
        r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|size mismatch, m1",
        r"size of tensor a \(\d+\) must match|Expected input batch_size \(\d+\) to match",
        r"stack expects each tensor to be equal size|Sizes of tensors must match except in",
        r"shape '\[.+\]' is invalid for input of size|cannot reshape (?:array|tensor) of",
        r"Given groups=\d+, weight of size|expected .* to have \d+ channels|shape mismatch",
        r"Using a target size \(.*\) that is different to|operands could not be broadcast",
        r"loaded state dict (?:contains a parameter group that|has a different number)",
        r"(?:normalized|expected input with) shape|input\.size\(-1\) must be equal|size mismatch",
    ),
    (FailureCause.WRONG_ARGUMENT, SURE): (
        r"error: (?:unrecognized|ambiguous|the following arguments|one of the arguments|argument \S"
        r"|parser key|unknown (?:short)?(?:hand )?flag)|Unknown command line flag",
        r"^\S*(?:torchrun|launch\.py|run\.py): error: |: (?:unrecognized|invalid|illegal) option\b",
        r"^(?:error|Error): (?:no such|Missing|Invalid value|Got unexpected|Unexpected) ?(?:option"
        r"|argum|command|for|extra)|Could not consume arg|Unsupported nproc_per_node value",
        r"are not used by the HfArgumentParser|ConfigCompositionException|Could not override '",
        r"MissingMandatoryValue|error validating data|unknown field \"|strict decoding error",
        r"^(?:sbatch|srun): error: (?:Invalid numeric|Batch script contains DOS|This does not)",
        r"\bThe \w+ \"\S+\" is invalid: ",
    ),
    (FailureCause.WRONG_ARGUMENT, LIKELY): (r"namespaces? \"\S+\" not found|is no image's name",),
    (FailureCause.WRONG_ARGUMENT, SIGN): (r"^error: \S",),  # the launcher's, which names the fix
    (FailureCause.NAN_LOSS, SURE): (
        r"^(?!.*warn)"
        + _RAISED.lstrip("^")
        + r"\b(?:nans?\b|non-?finite|not finite|diverged|infini)",
        r"^(?!.*warn)" + _RAISED.lstrip("^") + r"\b(?:loss|grad\w*|norm)\b.*\binf\b",
        r"Loss is (?:nan|inf)\w*,? stopping|(?:minimum loss scale|loss scale already at minimum)",
    ),
    (FailureCause.NAN_LOSS, HINT): (
        r"\bloss\b\W{0,4}(?:=|:|is)?\s*(?:tensor\()?[-+]?(?:nan|inf)\b",
        r"probability tensor contains either `inf`, `nan`",
    ),
    (FailureCause.UNEVEN_BATCHES, SURE): (r"Detected at least one rank that exhausted inputs",),
    (FailureCause.EXITED_EARLY, LIKELY): (
        r"Connection closed by peer.*process group has been destroyed",
    ),
    (FailureCause.DATA_LOADER_WORKER_DIED, LIKELY): (
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
        r"one of its workers has died|Pin memory thread exited unexpectedly",
    ),
    (FailureCause.DATA_STALL, LIKELY): (
        r"DataLoader timed out after \d+ seconds|blocked for more than \d+ seconds",
        r"nfs: server \S+ not responding|lustre.*(?:connection .*lost|timed out|evicted)",
        r"ceph: mds\S* hung|libceph: .*timeout|Stale file handle|\[Errno (?:5|107|116)\]",
        r"data(?:loader| loading)? (?:is )?(?:stall|slow|the bottleneck)|Transport endpoint is not",
    ),
    (FailureCause.CRASHED, LIKELY): (
        r"Fatal Python error: (?!.*init_)|segmentation fault|\(core dumped\)|caught signal 11\b",
        r"exited on signal (?:4|6|7|8|11)\b|Signal (?:4|7|8|11) \(SIG\w+\) received by PID",
        r"failed \(exitcode: -(?:4|7|8|11)\)|\bexit ?code:? *[:=]? *(?:132|135|136|139)\b",
        r"double free|stack smashing|free\(\): |malloc\w*\(\): |corrupted size vs|munmap_chunk\(\)",
        r"\bAssertion [`']\S.*' failed|\bsegfault at [0-9a-f]+ ip\b|Process received signal",
        r"task \d+: (?:Bus error|Aborted|Illegal|Floating)|traps: .*(?:general prot|invalid opc)",
    ),
    (FailureCause.CRASHED, SIGN): (r"terminate called after throwing",),
    (FailureCause.KILLED, SIGN): (
        r"SignalException: Process \d+ got signal: (?:15|1|10|12)\b|exited on signal (?:9|15)\b",
        r"received (?:15|SIGTERM|SIGHUP|Signals\.\w+) death signal|signal: killed",
        r"^\s*(?:\S+: line \d+: +\d+ )?Killed\b|task \d+: (?:Killed|Terminated)",
        r"\bexit ?code:? *[:=]? *(?:137|143)\b|Signal (?:9|15) \(SIG\w+\) received by PID",
    ),
    (FailureCause.STOPPED_BY_USER, LIKELY): (
        r"^KeyboardInterrupt\b|received Ctrl\+C|received (?:2|SIGINT|Signals\.SIGINT) death signal",
        r"SignalException: Process \d+ got signal: 2\b|interrupt received|srun: interrupt",
    ),
}

_TOLD = {
    "NCCL": re.compile(r"NCCL version (\d[\d.]*)"),
    "torch": re.compile(
        r"\b(?:torch|PyTorch)(?:\.__version__|_version)?(?: version)?[ :=]+v?(\d+\.\d+[\w.+]*)"
    ),
    "CUDA driver": re.compile(r"Driver [Vv]ersion[ :=]+(\d+\.[\d.]+)"),
    "Python": re.compile(r"\bPython[ :=]+(3\.\d+)"),
}


def find_differences(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A version that is not the same on all nodes, or ranks, that tell it. Pure."""
    for what, pattern in _TOLD.items():
        told: dict[str, LogLine] = {}
        for line in lines:
            if (line.node, line.rank) != (None, None) and (found := pattern.search(line.text)):
                told.setdefault(found[1].rstrip("."), line)
        if len(told) > 1:
            versions = " and ".join(sorted(told))
            line = replace(list(told.values())[-1], text=f"the nodes differ in {what}: {versions}")
            yield Meaning(cause=FailureCause.VERSION_MISMATCH, weight=LIKELY, line=line)
