"""The script, its data and its versions: exceptions, damaged files, and how processes end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, SIGN, SURE, Meaning, table

RULES = table(r"""
script-error sure
  ^(?:SyntaxError|IndentationError|TabError): |partially initialized module
  Expected to have finished reduction in the prior|does not require grad and does not have
  [Dd]efault process group has not been initialized|Duplicate GPU detected : rank
script-error sign
  task \d+: Exited with exit code|ChildFailedError
missing-module sure
  ^(?:ModuleNotFoundError: |\S*python[\d.]*: )?No module named '?(?P<package>\w+)
  Error while finding module specification for
  ^ImportError: (?!.*(?:version `|static TLS|numpy|compiled (?:using|against)))
  error while loading shared libraries|^(?:ImportError|OSError): .*\.so\b.*: (?:undefined|cannot)
  DistributionNotFound|VersionConflict|PackageNotFoundError|has no torch\b|error: init_(?:fs|im)
missing-module likely
  : undefined symbol: |cannot open shared object
version-mismatch sure
  (?:NCCL|torch|CUDA|Python|driver|cuDNN) .*versions? .*(?:mismatch|differ|incompatib)
  mismatch.*(?:NCCL|torch|Python) version|version mismatch.*(?:between|across)|the nodes differ in
  nodes have different|torch is \S+ on most hosts, but|cuDNN version incompatib
  were compiled with different CUDA|binary incompatibility
  CUDA version \(.*\) mismatches the version that was used to compile PyTorch
  compiled (?:using NumPy 1|against (?:NumPy )?(?:ABI|API) version)|static TLS block
  Couldn't load custom C\+\+ ops|operator \S+::\w+ does not exist
  version `(?:GLIBC|GLIBCXX|CXXABI|GOMP)_\S+' not found|unsupported pickle protocol
  maximum supported version for reading is|requires a different Python
  NCCL WARN .*(?:magic|unexpected .*(?:size|version))|bootstrap.*received \d+ bytes instead of
  Message truncated : received \d+ bytes
code-mismatch sure
  (?:code|config(?:uration)?) (?:hash|version)?s? ?(?:differs?|mismatch).*(?:rank|node)
  (?:rank|node)s? .*(?:run|have) (?:different|other) (?:code|config)
pickling sure
  (?:can(?:'t|not)|can not|could not) pickle|(?<!Un)PicklingError
  (?:Can't|cannot) get (?:local object|attribute '\w+' on <module '__(?:mp_)?main__')
bad-data sure
  PytorchStreamReader failed (?!.*locating file constants)|storage has wrong byte size
  invalid magic number; corrupt|invalid load key|UnpicklingError|unexpected EOF
  invalid header or archive is corrupted|failed finding central directory|Ran out of input
  Weights only load failed|Failed to interpret file .* as a pickle|No data left in file
  image file is truncated|cannot identify image|broken (?:data stream|PNG)|moov atom not f
  SafetensorError(?!.*(?:No such|StorageFull))|HeaderTooLarge|InvalidHeaderDeserialization
  MetadataIncompleteBuffer|BadZipFile|BadGzipFile
  ^(?:zlib|lzma|_?csv|tarfile)\.\w*Error|Compressed file ended before|while decompressing|not a gzip
  CRC (?:check )?fail|checksum\w* (?:mismatch|failed|does not match)|DataLossError
  (?:corrupt(?:ed)?|truncated) (?:file|record|data|image|shard)|(?:file|record|shard) is corrupt
  file signature not found|mmap length is greater than file
  Parquet magic bytes|ArrowInvalid|deserialize thrift|Invalid data found when processing
bad-data likely
  JSONDecodeError|UnicodeDecodeError|TOMLDecodeError|^yaml\.\S*Error|EmptyDataError
  Error tokenizing data|configparser\.\w+Error
disk-full likely
  No usable temporary directory
missing-file sure
  ^(?!.*No usable temp).*(?:FileNotFoundError|(?:Is|Not)ADirectoryError|<ENOENT>)
  Parent directory \S+ does not exist|file into a non-existent directory|is not a local folder
  does not appear to have a file|LocalEntryNotFound|RepositoryNotFo|DatasetNotFoundError
  ^(?:OSError|\S*HFValidationError): .*Can't load|could not access or execute an executable
  unable to find the specified executable
  ^(?:error: |  )\S+: has no (?:/|python)|^sbatch: error: Unable to open file
missing-file likely
  No such file or directory|(?:command )not found$|: not found$|NoSuch(?:Key|Bucket)
  Lmod has detected the following error|Unable to locate a modulefile|not found on this machine
  ; no such file|is not the folder of the other hosts|Couldn't find any class folder
  Found 0 files in|pathspec '.*' did not match
permission sure
  ^PermissionError: |<EPERM>|<EACCES>|<EROFS>|Read-only file system
permission likely
  : Permission denied$
wrong-shapes sure
  mat1 and mat2 |mat1 dim 1 must match mat2|size mismatch for \S+: copying a param
  Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|size mismatch, m1
  size of tensor a \(\d+\) must match|Expected input batch_size \(\d+\) to match
  stack expects each tensor to be equal size|Sizes of tensors must match except in
  shape '\[.+\]' is invalid for input of size|cannot reshape (?:array|tensor) of
  Given groups=\d+, weight of size|expected .* to have \d+ channels|shape mismatch
  Using a target size \(.*\) that is different to|operands could not be broadcast
  loaded state dict (?:contains a parameter group that|has a different number)|size mismatch
  (?:normalized|expected input with) shape|input\.size\(-1\) must be equal
wrong-argument sure
  error: (?:unrecognized|ambiguous|the following arguments|one of the arguments|argument \S)
  error: (?:parser key|unknown (?:shorthand )?flag)|Unknown command line flag
  ^\S*(?:torchrun|launch\.py|run\.py): error: |: (?:unrecognized|invalid|illegal) option\b
  ^error: (?:no such|missing|invalid value|got unexpected|unexpected) ?(?:option|argum|comm|for|e)
  Could not consume arg|Unsupported nproc_per_node value|are not used by the HfArgumentParser
  ConfigCompositionException|Could not override '|MissingMandatoryValue|error validating data
  unknown field \"|strict decoding error
  ^(?:sbatch|srun): error: (?:Invalid numeric|Batch script contains DOS|This does not)
  \bThe \w+ \"\S+\" is invalid:
wrong-argument likely
  namespaces? \"\S+\" not found|is no image's name
# The launcher's own, which names the fix.
wrong-argument sign
  ^error: \S
nan-loss sure
  ^(?!.*warn).*(?:Error|Exception)\b.*\b(?:nans?\b|non-?finite|not finite|diverged|infini)
  ^(?!.*warn).*(?:Error|Exception)\b.*\b(?:loss|grad\w*|norm)\b.*\binf\b
  Loss is (?:nan|inf)\w*,? stopping|(?:minimum loss scale|loss scale already at minimum)
nan-loss hint
  \bloss\b\W{0,4}(?:=|:|is)?\s*(?:tensor\()?[-+]?(?:nan|inf)\b
  probability tensor contains either `inf`, `nan`
uneven-batches sure
  Detected at least one rank that exhausted inputs
exited-early likely
  Connection closed by peer.*process group has been destroyed
data-loader-worker-died likely
  DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)
  one of its workers has died|Pin memory thread exited unexpectedly
data-stall likely
  DataLoader timed out after \d+ seconds|blocked for more than \d+ seconds
  nfs: server \S+ not responding|lustre.*(?:connection .*lost|timed out|evicted)
  <EIO>|<ENOTCONN>|<ESTALE>|Stale file handle|Transport endpoint is not|ceph: .*(?:hung|timeout)
  data(?:loader| loading)? (?:is )?(?:stall|slow|the bottleneck)
crashed likely
  Fatal Python error: (?!.*init_)|segmentation fault|\(core dumped\)|caught signal 11\b
  exited on signal (?:4|6|7|8|11)\b|Signal (?:4|7|8|11) \(SIG\w+\) received by PID
  failed \(exitcode: -(?:4|7|8|11)\)|\bexit ?code:? *[:=]? *(?:132|135|136|139)\b|double free
  stack smashing|free\(\): |malloc\w*\(\): |corrupted size vs|munmap_chunk\(\)
  \bAssertion [`']\S.*' failed|\bsegfault at [0-9a-f]+ ip\b|Process received signal
  task \d+: (?:Bus error|Aborted|Illegal|Floating)|traps: .*(?:general prot|invalid opc)
crashed sign
  terminate called after throwing
killed likely
  failed liveness probe, will be restarted
killed sign
  SignalException: Process \d+ got signal: (?:15|1|10|12)\b|exited on signal (?:9|15)\b
  received (?:15|SIGTERM|SIGHUP|Signals\.\w+) death signal|signal: killed
  ^\s*(?:\S+: line \d+: +\d+ )?Killed\b|task \d+: (?:Killed|Terminated)
  \bexit ?code:? *[:=]? *(?:137|143)\b|Signal (?:9|15) \(SIG\w+\) received by PID
stopped-by-user likely
  ^KeyboardInterrupt\b|received Ctrl\+C|received (?:2|SIGINT|Signals\.SIGINT) death signal
  SignalException: Process \d+ got signal: 2\b|interrupt received|srun: interrupt
""")

_VERSIONS = {
    "code": re.compile(r"^code version ([0-9a-f]{12})$"),
    "torch": re.compile(
        r"\b(?:torch|PyTorch)(?:\.__version__|_version)?(?: version)?[ :=]+v?(\d+\.\d+[\w.+]*)"
    ),
    "NCCL": re.compile(r"NCCL version (\d[\d.]*)"),
    "Python": re.compile(r"\bPython(?: version)?[ :=]+(3\.\d+)"),
    "Driver": re.compile(r"Driver [Vv]ersion[ :=]+(\d+\.[\d.]+)"),
}
"""How a line tells what has to be the same on all nodes; agents tell it by these words."""
_MAY_DIFFER = ("Python", "Driver")


def find_differences(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A version that is not the same on all nodes, or ranks, that tell it. Pure."""
    for what, pattern in _VERSIONS.items():
        told: dict[str, list[LogLine]] = {}
        for line in lines:
            if (line.node, line.rank) != (None, None) and (found := pattern.search(line.text)):
                told.setdefault(found[1].rstrip("."), []).append(line)
        if len(told) > 1:
            line = min(reversed(told.values()), key=len)[0]
            is_wrong = line.joined and what not in _MAY_DIFFER
            weight = SURE if is_wrong else SIGN if line.joined else LIKELY
            text = f"the nodes differ in {what}: {' and '.join(sorted(told))}"
            cause = FailureCause[f"{'CODE' if what == 'code' else 'VERSION'}_MISMATCH"]
            line = replace(line, text=text, joined=is_wrong)
            yield Meaning(cause=cause, weight=weight, line=line)
