"""What an agent's archive holds besides bytecode, which is not the same in every process."""

import io
import zipfile


def sources_in(archive: bytes) -> dict[str, bytes]:
    """Each source file by its name; bytecode differs by what else its interpreter has compiled."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name.endswith(".py")}
