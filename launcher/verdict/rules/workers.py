"""Exceptions of the script and how its processes end."""

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import HINT, LIKELY, SIGN, SURE, Meanings

MEANINGS: Meanings = {
    (FailureCause.MISSING_MODULE, SURE): (
        r"^(?:ModuleNotFoundError: |\S*python[\d.]*: )?No module named '?(?P<package>\w+)",
        r"^ImportError: cannot import name ",
        r"^(?:ImportError|OSError): \S+\.so[\d.]*: (?:cannot open|undefined symbol)",
        r"DistributionNotFound|VersionConflict|PackageNotFoundError",
    ),
    (FailureCause.WRONG_ARGUMENT, SURE): (
        r"error: (?:unrecognized arguments|the following arguments are required|argument \S+.*:)",
        r"^ValueError: Unsupported nproc_per_node value",
        r"^(?:torchrun|launch\.py): error: |^(?:srun|sbatch|scontrol): unrecognized option",
        r"^(?:error|Error): no such option|^Error: No such option|^Error: Missing (?:option|argum)",
    ),
    (FailureCause.MISSING_FILE, SURE): (
        r"^FileNotFoundError: |^NotADirectoryError: |^IsADirectoryError: ",
        r"can't open file '.+': \[Errno 2\]",
        r"^RuntimeError: Parent directory \S+ does not exist",
        r"^(?:OSError|\S*HFValidationError|\S*LocalEntryNotFoundError): .*"
        r"(?:is not a local folder|Can't load|does not appear to have a file)",
    ),
    (FailureCause.PERMISSION, SURE): (
        r"^PermissionError: |\[Errno 13\]|\[Errno 30\]|Read-only file system",
        r"can't open file '.+': \[Errno 13\]|: Permission denied$",
    ),
    (FailureCause.PICKLING, SURE): (
        r"^(?:\S*PicklingError|AttributeError|TypeError): (?:Can't|Can not|cannot) (?:get local|"
        r"pickle)",
        r"^AttributeError: Can't get attribute '\w+' on <module '__(?:mp_)?main__'",
    ),
    (FailureCause.WRONG_SHAPES, SURE): (
        r"mat1 and mat2 (?:shapes cannot be multiplied|must have the same dtype)",
        r"size mismatch for \S+: copying a param",
        r"Error\(s\) in loading state_dict",
        r"The size of tensor a \(\d+\) must match the size of tensor b",
        r"Expected input batch_size \(\d+\) to match target batch_size",
        r"stack expects each tensor to be equal size|Sizes of tensors must match except in",
        r"^RuntimeError: shape '\[.+\]' is invalid for input of size",
        r"^RuntimeError: Given groups=\d+, weight of size|expected .* to have \d+ channels",
        r"^ValueError: Using a target size \(.*\) that is different to the input size",
        r"^\S+: .*loaded state dict contains a parameter group that doesn't match",
    ),
    (FailureCause.NAN_LOSS, SURE): (
        r"^(?!.*(?:warn|Warn)).*(?:Error|Exception|Interrupt)\b.*\b(?:[Ll]oss|[Gg]rad\w*)\b.*"
        r"(?:\bnan\b|\bNaN\b|\binf\b|infinite|not finite|non-finite|diverged)",
        r"Function '\w+Backward\d*' returned nan values",
        r"The total norm of order .* for gradients from .* is non-finite",
        r"Loss is (?:nan|inf|NaN), stopping training",
        r"Current loss scale already at minimum",
        r"[Mm]inimum loss scale reached",
    ),
    (FailureCause.NAN_LOSS, HINT): (
        r"(?i)\bloss\b\W{0,4}(?:=|:|is)?\s*(?:tensor\()?[-+]?(?:nan|inf)\b",
        r"probability tensor contains either `inf`, `nan`",
    ),
    (FailureCause.SCRIPT_ERROR, SURE): (r"Duplicate GPU detected : rank \d+ and rank \d+ both on",),
    (FailureCause.UNEVEN_BATCHES, SURE): (r"Detected at least one rank that exhausted inputs",),
    (FailureCause.EXITED_EARLY, LIKELY): (
        r"Connection closed by peer.*process group has been destroyed",
    ),
    (FailureCause.CRASHED, LIKELY): (
        r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted|Floating point|Illegal)",
        r"\(core dumped\)|[Ss]egmentation fault|double free or corruption|stack smashing detected",
        r"free\(\): invalid|malloc\(\): |corrupted size vs\. prev_size|munmap_chunk\(\): invalid",
        r"Caught signal 11|traps: \S+.*(?:general protection|trap invalid opcode)",
        r"\bsegfault at [0-9a-f]+ ip\b",
    ),
    (FailureCause.KILLED, SIGN): (
        r"SignalException: Process \d+ got signal: (?:15|1|10|12)\b",
        r"Received (?:15|SIGTERM|Signals\.SIGTERM\S*) death signal",
        r"^\s*(?:/\S+: line \d+: +\d+ )?Killed\b",
    ),
    (FailureCause.STOPPED_BY_USER, LIKELY): (
        r"^KeyboardInterrupt\b|received Ctrl\+C|Received 2 death signal",
        r"SignalException: Process \d+ got signal: 2\b",
        r"Keyboard interrupt received|srun: interrupt \(one more within",
    ),
}
