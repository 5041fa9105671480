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
  [Dd]efault process group has not been initialized|attempt has been made to start a new process
script-error sign
  ChildFailedError|failed \(exitcode: \d|task \d+: Exited with exit code
missing-module sure
  ^(?:ModuleNotFoundError: |\S*python[\d.]*: )?No module named '?(?P<package>\w+)
  Error while finding module specification for
  ^ImportError: (?!.*(?:version `|static TLS|numpy|compiled (?:using|against)))|PackageNotFoundError
  has no torch\b|No matching distribution found|Failed to find C compiler|DistributionNotFound
  VersionConflict
missing-module likely
  cannot open shared object
version-mismatch sure
  (?:NCCL|torch|CUDA|Python|driver|cuDNN) .*versions? .*(?:mismatch|differ|incompatib)
  mismatch.*(?:NCCL|torch|Python) version|the nodes differ in|nodes have different
  torch is \S+ on most hosts, but|binary incompatibility
  compiled (?:using NumPy 1|against (?:NumPy )?(?:ABI|API) version)|static TLS block
  operator \S+::\w+ does not exist|version `(?:GLIBC|GLIBCXX|CXXABI|GOMP)_\S+' not found
  unsupported pickle protocol|maximum supported version for reading is
  Message truncated : received \d+ bytes|NCCL WARN .*(?:magic|unexpected .*(?:size|version))
  version mismatch.*(?:between|across)|were compiled with different CUDA
  Couldn't load custom C\+\+ ops|requires a different Python
code-mismatch sure
  (?:code|config(?:uration)?) (?:hash|version)?s? ?(?:differs?|mismatch).*(?:rank|node)
  (?:rank|node)s? .*(?:run|have) (?:different|other) (?:code|config)
pickling sure
  (?:can(?:'t|not)|can not|could not) pickle
  (?:Can't|cannot) get (?:local object|attribute '\w+' on <module '__(?:mp_)?main__')
bad-data sure
  UnpicklingError|unexpected EOF|invalid header or archive is corrupted
  failed finding central directory|Ran out of input|Weights only load failed|image file is truncated
  cannot identify image|SafetensorError(?!.*(?:No such|StorageFull))|BadZipFile|while decompressing
  not a gzip|CRC (?:check )?fail|checksum\w* (?:mismatch|failed|does not match)
  (?:corrupt(?:ed)?|truncated) (?:file|record|data|image|shard)|ArrowInvalid
  Failed to interpret file .* as a pickle|Invalid data found when processing
  (?:file|record|shard) is corrupt|mmap length is greater than file|InvalidHeaderDeserialization
  Compressed file ended before|storage has wrong byte size|broken (?:data stream|PNG)
  file signature not found|No data left in file|deserialize thrift|moov atom not f|DataLossError
bad-data likely
  JSONDecodeError|UnicodeDecodeError|Error tokenizing data|configparser\.\w+Error|TOMLDecodeError
  ^yaml\.\S*Error|EmptyDataError
disk-full likely
  No usable temporary directory
missing-file sure
  ^(?!.*No usable temp).*(?:FileNotFoundError|(?:Is|Not)ADirectoryError|<ENOENT>)
  Parent directory \S+ does not exist|file into a non-existent directory|is not a local folder
  does not appear to have a file|^(?:error: |  )\S+: has no (?:/|python)
  ^(?:OSError|\S*HFValidationError): .*Can't load|could not access or execute an executable
  unable to find the specified executable|^sbatch: error: Unable to open file|DatasetNotFoundError
  LocalEntryNotFound|RepositoryNotFo
missing-file likely
  No such file or directory|(?:command )not found$|: not found$|NoSuch(?:Key|Bucket)
  not found on this machine|; no such file|is not the folder of the other hosts|Found 0 files in
  Lmod has detected the following error|Unable to locate a modulefile|pathspec '.*' did not match
permission sure
  <EPERM>|<EACCES>|<EROFS>|Read-only file system|filesystem read-only
permission likely
  : Permission denied$
wrong-shapes sure
  mat1 and mat2 |Error\(s\) in loading state_dict|size of tensor a \(\d+\) must match
  Expected input batch_size \(\d+\) to match|stack expects each tensor to be equal size
  Sizes of tensors must match except in|shape '\[.+\]' is invalid for input of size
  Given groups=\d+, weight of size|expected .* to have \d+ channels|shape mismatch
  operands could not be broadcast
  loaded state dict (?:contains a parameter group that|has a different number)|size mismatch
  missing key(?:\(s\))? in (?:checkpoint )?state_dict
  Using a target size \(.*\) that is different to|(?:normalized|expected input with) shape
  cannot reshape (?:array|tensor) of|input\.size\(-1\) must be equal|mat1 dim 1 must match mat2
  size mismatch, m1
wrong-argument sure
  error: (?:unrecognized|ambiguous|the following arguments|one of the arguments|argument \S)
  Unknown command line flag|: (?:unrecognized|invalid|illegal) option\b
  Unsupported nproc_per_node value|are not used by the HfArgumentParser|Could not override '
  strict decoding error|\bThe \w+ \"\S+\" is invalid:
  ^(?:sbatch|srun): error: (?:Invalid numeric|Batch script contains DOS|This does not)
  ConfigCompositionException|Could not consume arg|MissingMandatoryValue|error validating data
  unknown field \"
wrong-argument likely
  namespaces? \"\S+\" not found
wrong-argument sign
  ^error: \S
nan-loss sure
  ^(?!.*warn).*(?:Error|Exception)\b.*\b(?:nans?\b|non-?finite|not finite|diverged|infini)
  Loss is (?:nan|inf)\w*,? stopping|(?:minimum loss scale|loss scale already at minimum)
  ^(?!.*warn).*(?:Error|Exception)\b.*\b(?:loss|grad\w*|norm)\b.*\binf\b
nan-loss hint
  \bloss\b\W{0,4}(?:=|:|is)?\s*(?:tensor\()?[-+]?(?:nan|inf)\b
  probability tensor contains either `inf`, `nan`
uneven-batches sure
  Detected at least one rank that exhausted inputs|made fewer steps: it had ended before
exited-early likely
  Connection closed by peer.*process group has been destroyed
data-loader-worker-died likely
  DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)
  Pin memory thread exited unexpectedly
data-stall likely
  DataLoader timed out after \d+ seconds|blocked for more than \d+ seconds
  nfs: server \S+ not responding|lustre.*(?:connection .*lost|timed out|evicted)|<EIO>|<ENOTCONN>
  <ESTALE>|Transport endpoint is not|ceph: .*(?:hung|timeout)
crashed likely
  Fatal Python error: (?!.*init_)|segmentation fault|caught signal 11\b
  Signal (?:4|7|8|11) \(SIG\w+\) received by PID|failed \(exitcode: -(?:4|7|8|11)\)
  process (?P<rank>\d+) terminated with signal SIG(?:SEGV|ABRT|BUS|FPE|ILL)\b|double free
  \bexit(?:ed with)? ?code:? *[:=]? *(?:132|135|136|139)\b|\bAssertion [`']\S.*' failed
  \bsegfault at [0-9a-f]+ ip\b|Process received signal
  (?:task \d+: |line \d+: +\d+ )(?:Bus error|Aborted|Illegal|Floating)|traps: .*(?:general prot|invalid opc)
  corrupted size vs|munmap_chunk\(\)|malloc\w*\(\): |stack smashing
crashed sign
  failed \(exitcode: -6\)
killed likely
  failed liveness probe, will be restarted
killed sign
  SignalException: Process \d+ got signal: (?:15|1|10|12)\b|exited on signal (?:9|15)\b
  process (?P<rank>\d+) terminated with signal SIG(?:KILL|TERM)\b
  received (?:15|SIGTERM|SIGHUP|Signals\.\w+) death signal|signal: killed
  ^\s*(?:\S+: line \d+: +\d+ )?Killed\b|task \d+: (?:Killed|Terminated)
  \bexit(?:ed with)? ?code:? *[:=]? *(?:137|143)\b|Signal (?:9|15) \(SIG\w+\) received by PID
  failed \(exitcode: -(?:9|15)\)
stopped-by-user likely
  ^KeyboardInterrupt\b|received Ctrl\+C|received (?:2|SIGINT|Signals\.SIGINT) death signal
  SignalException: Process \d+ got signal: 2\b
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
        places = [{(x.node, x.rank if x.node is None else 0) for x in one} for one in told.values()]
        if len(told) > 1 and not set.intersection(*places):
            line = min(reversed(told.values()), key=len)[0]
            is_wrong = what not in _MAY_DIFFER
            weight = SURE if is_wrong else SIGN if line.joined else LIKELY
            text = f"the nodes differ in {what}: {' and '.join(sorted(told))}"
            cause = FailureCause[f"{'CODE' if what == 'code' else 'VERSION'}_MISMATCH"]
            line = replace(line, text=text, joined=line.joined and is_wrong)
            yield Meaning(cause=cause, weight=weight, line=line)
