"""The script, its data and its versions: exceptions, damaged files, losses that are not finite, how
processes end, and what differs between nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.contract.causes import Cause
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, SIGN, SURE, Meaning, table

RULES = table(
    r"""
script-error root
  not an allowed global by default => weights_only=False for a file that you trust
script-error sure
  ^(?:SyntaxError|IndentationError|TabError): |[Dd]efault process group has not been initialized
  partially initialized module {name} => undo the circle of imports; or rename PACKAGE.py
  cannot import name .* from {name}(?!.*{installed}) => correct it; or rename your own PACKAGE
  ^EOFError: EOF when reading a line|^(?:bdb\.)?BdbQuit => workers have no stdin; pdb: --debug R
  does not require grad and does not have
  Expected to have finished reduction in the prior|attempt has been made to start a new process
script-error sign
  ChildFailedError|failed \(exitcode: \d|task \d+: Exited with exit code
missing-module sure
  module .*; (?P<package>[\w/]+)\.py is no package$ => PACKAGE.py is no package: correct the name
  module .*; (?P<package>[\w/]+) has no \w+$ => correct the name; ls PACKAGE tells what there is
  No module named .*; {name} is not a package => rename PACKAGE.py, which hides that package
  cannot import name .* from {name}.*{installed} => correct it; or python -m pip install -U PACKAGE
  No module named .*; it lies in => --set env.PYTHONPATH=FOLDER, or pip install -e .
  ^(?:ModuleNotFoundError: |\S*python[\d.]*: )?No module named '?(?P<package>\w+)
  Error while finding module spec.* {name} \( => cd to the folder of PACKAGE, or pip install PACKAGE
  Error while finding module specification for|PackageNotFoundError|No matching distribution found
  ^ImportError: (?!attempted |cannot imp|.*(?:version `|static TLS|numpy|compiled (?:us|against)))
  VersionConflict
  has no torch\b|Failed to find C compiler|DistributionNotFound
missing-module likely
  cannot open shared object
version-mismatch sure
  (?:NCCL|torch|CUDA|Python|driver|cuDNN) .*versions? .*(?:mismatch|differ|incompatib)
  mismatch.*(?:NCCL|torch|Python) version|NCCL WARN .*(?:magic|unexpected .*(?:size|version))
  the nodes differ in
  nodes have different|Message truncated : received \d+ bytes|version mismatch.*(?:between|across)
  torch is \S+ on most hosts, but|compiled (?:using NumPy 1|against (?:NumPy )?(?:ABI|API) version)
  binary incompatibility|static TLS block|unsupported pickle protocol|requires a different Python
  operator \S+::\w+ does not exist|were compiled with different CUDA|Couldn't load custom C\+\+ ops
  version `(?:GLIBC|GLIBCXX|CXXABI|GOMP)_\S+' not found|maximum supported version for reading is
code-mismatch sure
  (?:code|config(?:uration)?) (?:hash|version)?s? ?(?:differs?|mismatch).*(?:rank|node)
  (?:rank|node)s? .*(?:run|have) (?:different|other) (?:code|config)
pickling sure
  (?:can(?:'t|not)|can not|could not) pickle
  (?:Can't|cannot) get (?:local object|attribute '\w+' on <module '__(?:mp_)?main__')
bad-data sure
  UnpicklingError|unexpected EOF|Ran out of input|ArrowInvalid|moov atom not f|DataLossError
  invalid header or archive is corrupted|Failed to interpret file .* as a pickle|deserialize thrift
  failed finding central directory|(?:file|record|shard) is corrupt|InvalidHeaderDeserialization
  Weights only load failed|broken (?:data stream|PNG)|file signature not found|No data left in file
  image file is truncated|cannot identify image|BadZipFile|while decompressing|CRC (?:check )?fail
  SafetensorError(?!.*(?:No such|StorageFull))|checksum\w* (?:mismatch|failed|does not match)
  not a gzip|tarfile\.ReadError|MDB_CORRUPTED
  (?:corrupt(?:ed)?|truncated) (?:file|record|data|image|shard)|Invalid data found when processing
  mmap length is greater than file|Compressed file ended before|storage has wrong byte size
bad-data likely
  ^OSError: \[Errno 22\] Invalid argument <EINVAL>$ => a cut file; load an earlier checkpoint
  <EIO> => read a copy elsewhere; dmesg -T there names the disk or mount that fails
  JSONDecodeError|UnicodeDecodeError|Error tokenizing data|configparser\.\w+Error|TOMLDecodeError
  ^yaml\.\S*Error|EmptyDataError
disk-full likely
  No usable temporary directory
missing-file sure
  ^(?!.*No usable temp).*(?:FileNotFoundError|(?:Is|Not)ADirectoryError|<ENOENT>)|RepositoryNotFo
  NotFound: 404\b
  Parent directory \S+ does not exist|is not a local folder|^sbatch: error: Unable to open file
  file into a non-existent directory|does not appear to have a file|DatasetNotFoundError
  ^(?:error: |  )\S+: has no (?:/|python)|unable to find the specified executable
  ^(?:OSError|\S*HFValidationError): .*Can't load|could not access or execute an executable
  LocalEntryNotFound
missing-file likely
  No such file or directory|: not found$|Unable to locate a modulefile|pathspec '.*' did not match
  (?:command )not found$|is not the folder of the other hosts|Lmod has detected the following error
  NoSuch(?:Key|Bucket)|not found on this machine|; no such file|Found 0 files in
permission sure
  <EPERM>|<EACCES>|<EROFS>|Read-only file system|filesystem read-only
permission likely
  : Permission denied$
wrong-shapes sure
  mat1 and mat2 |loaded state dict (?:contains a parameter group that|has a different number)
  size of tensor a \(\d+\) must match|Sizes of tensors must match except in|shape mismatch
  Error\(s\) in loading state_dict|cannot reshape (?:array|tensor) of|mat1 dim 1 must match mat2
  Expected input batch_size \(\d+\) to match|Using a target size \(.*\) that is different to
  stack expects each tensor to be equal size|size mismatch|(?:normalized|expected input with) shape
  shape '\[.+\]' is invalid for input of size|missing key(?:\(s\))? in (?:checkpoint )?state_dict
  Given groups=\d+, weight of size|expected .* to have \d+ channels|operands could not be broadcast
  input\.size\(-1\) must be equal
wrong-argument sure
  ^fabric_train\.errors\.InputError: .*; fix: => FIX
  saves its checkpoints in the same folder => a folder for each run: --set checkpoint_dir=DIR
  ImportError: attempted relative import => from the folder above the package: -m MODULE
  error: (?:unrecognized|ambiguous|the following arguments|one of the arguments|argument \S)
  Unknown command line flag|strict decoding error|Could not consume arg|MissingMandatoryValue
  : (?:unrecognized|invalid|illegal) option\b|are not used by the HfArgumentParser|unknown field \"
  Unsupported nproc_per_node value|\bThe \w+ \"\S+\" is invalid:|ConfigCompositionException
  Could not override '|error validating data|^\S*Config(?:Key|Attribute)Error
  error: (?:Parser key|No such option)|Key \W?\S+\W? is not expected
  ^(?:sbatch|srun): error: (?:Invalid numeric|Batch script contains DOS|This does not)
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
  still needed has ended without an error
  Connection closed by peer.*process group has been destroyed
data-loader-worker-died likely
  DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)
  Pin memory thread exited unexpectedly
data-stall likely
  DataLoader timed out after \d+ seconds|lustre.*(?:connection .*lost|timed out|evicted)|<ENOTCONN>
  blocked for more than \d+ seconds|nfs: server \S+ not responding|Transport endpoint is not
  I/O error, dev \w+|<ESTALE>|ceph: .*(?:hung|timeout)
crashed likely
  process (?P<rank>\d+) terminated with signal SIG(?:SEGV|ABRT|BUS|FPE|ILL)\b
  Fatal Python error: (?!.*init_)|double free|Process received signal|\bsegfault at [0-9a-f]+ ip\b
  \bAssertion [`']\S.*' failed|(?:task \d+: |line \d+: +\d+ )(?:Bus error|Aborted|Illegal|Floating)
  (?:Illegal instruction|Bus error|Aborted|exception) \(core dumped\)|free\(\): invalid
  segmentation fault|caught signal 11\b|corrupted size vs|munmap_chunk\(\)|stack smashing
  malloc\w*\(\): |Signal (?:4|7|8|11) \(SIG\w+\) received by PID|failed \(exitcode: -(?:4|7|8|11)\)
  \bexit(?:ed with)? ?code:? *[:=]? *(?:132|135|136|139)\b|traps: .*(?:general prot|invalid opc)
crashed sign
  failed \(exitcode: -6\)
killed likely
  failed liveness probe, will be restarted|has ended \d+ times with exit code 137
killed sign
  process (?P<rank>\d+) terminated with signal SIG(?:KILL|TERM)\b
  SignalException: Process \d+ got signal: (?:15|1|10|12)\b|^\s*(?:\S+: line \d+: +\d+ )?Killed\b
  exited on signal (?:9|15)\b|signal: killed|failed \(exitcode: -(?:9|15)\)
  received (?:15|SIGTERM|SIGHUP|Signals\.\w+) death signal|task \d+: (?:Killed|Terminated)
  \bexit(?:ed with)? ?code:? *[:=]? *(?:137|143)\b|Signal (?:9|15) \(SIG\w+\) received by PID
stopped-by-user likely
  ^(?:\^C)?KeyboardInterrupt\b|received Ctrl\+C
  received (?:2|SIGINT|Signals\.SIGINT) death signal|SignalException: Process \d+ got signal: 2\b
""",
    name=r"'(?P<package>\w+)[\w.]*'",
    installed=r"(?:(?:site|dist)-packages|/lib/python3)",
)

_VERSIONS = {
    "code": re.compile(r"^code version ([0-9a-f]{12})$"),
    "torch": re.compile(
        r"\b(?:torch|PyTorch)(?:\.__version__|_version)?(?: version)?[ :=]+v?(\d+\.\d+[\w.+]*)"
    ),
    "NCCL": re.compile(r"NCCL version (\d[\d.]*)"),
    "Python": re.compile(r"\bPython(?: version)?[ :=]+(3\.\d+)"),
    "Driver": re.compile(r"Driver [Vv]ersion[ :=]+(\d+\.[\d.]+)"),
}
"""How a line names what has to be the same on all nodes; agents use the same words."""
_MAY_DIFFER = ("Python", "Driver")


def find_differences(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """Versions that differ between the nodes, or ranks, that report them. Pure."""
    for component, pattern in _VERSIONS.items():
        lines_by_version: dict[str, list[LogLine]] = {}
        for line in lines:
            if (line.node, line.rank) != (None, None) and (match := pattern.search(line.text)):
                lines_by_version.setdefault(match[1].rstrip("."), []).append(line)
        places = [
            {(line.node, line.rank if line.node is None else 0) for line in same}
            for same in lines_by_version.values()
        ]
        if len(lines_by_version) > 1 and not set.intersection(*places):
            line = min(reversed(lines_by_version.values()), key=len)[0]
            is_wrong = component not in _MAY_DIFFER
            weight = SURE if is_wrong else SIGN if line.joined else LIKELY
            text = f"the nodes differ in {component}: {' and '.join(sorted(lines_by_version))}"
            cause = Cause[f"{'CODE' if component == 'code' else 'VERSION'}_MISMATCH"]
            line = replace(line, text=text, joined=line.joined and is_wrong)
            yield Meaning(cause=cause, weight=weight, line=line)
