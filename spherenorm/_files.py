"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file in one step: whoever reads it finds the old content or the new, whole.

    The content is on the disk when this returns. After an error the old file is as it was.

    Args:
        path: in a folder that exists.
        content: text is encoded as UTF-8.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
