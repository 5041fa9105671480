"""One text from rank 0 to all ranks, through the PMIx server that mpirun runs on each node.

Every process of Open MPI 4 and later is a client of that server, and mpirun brings its library. So
ranks on any number of nodes can meet without a port that somebody chose. The types are those
of the PMIx standard (https://pmix.org), the same in its versions 3 to 5.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

from fabric_train.errors import InputError

GLOBAL_SCOPE, STRING_TYPE, NAME_BYTES = 3, 3, 256
LIBRARIES = ("libpmix.so.2", "libpmix.so")


class PmixProcess(ctypes.Structure):
    """``pmix_proc_t``: a rank of a job."""

    _fields_ = (("job", ctypes.c_char * NAME_BYTES), ("rank", ctypes.c_uint32))


class PmixValue(ctypes.Structure):
    """``pmix_value_t`` with a text in it; ``reserved`` covers the rest of its union."""

    _fields_ = (
        ("type", ctypes.c_uint16),
        ("text", ctypes.c_char_p),
        ("reserved", ctypes.c_char * 64),
    )


def exchange(key: str, text: str | None, fix: str) -> str:
    """Returns rank 0's ``text`` on all ranks; the others pass None. Blocks.

    Raises InputError, with ``fix``, if the library or the server is missing.
    """
    library = _load(fix)
    me = PmixProcess()

    def call(function: str, *arguments: Any) -> None:
        status = getattr(library, function)(*arguments)
        if status != 0:
            raise InputError(f"{function} of mpirun's PMIx failed with status {status}", fix)

    call("PMIx_Init", ctypes.byref(me), None, ctypes.c_size_t(0))
    try:
        if text is not None:
            value = PmixValue(STRING_TYPE, text.encode(), b"")
            scope = ctypes.c_uint8(GLOBAL_SCOPE)
            call("PMIx_Put", scope, ctypes.c_char_p(key.encode()), ctypes.byref(value))
            call("PMIx_Commit")
        call("PMIx_Fence", None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
        found = ctypes.POINTER(PmixValue)()
        root = PmixProcess(me.job, 0)
        name = ctypes.c_char_p(key.encode())
        call("PMIx_Get", ctypes.byref(root), name, None, ctypes.c_size_t(0), ctypes.byref(found))
        answer: str = found.contents.text.decode()
        # Rank 0 stays until all ranks have the text: perhaps only rank 0 can serve it.
        call("PMIx_Fence", None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
    finally:
        # Otherwise mpirun would report that a rank left without saying so.
        library.PMIx_Finalize(None, ctypes.c_size_t(0))
    return answer


def _load(fix: str) -> ctypes.CDLL:
    for name in (*LIBRARIES, ctypes.util.find_library("pmix")):
        try:
            return ctypes.CDLL(name) if name else ctypes.CDLL(LIBRARIES[0])
        except OSError as error:
            reason = error
    raise InputError(f"mpirun's PMIx library cannot be loaded: {reason}", fix)
