"""Is a path on a network file system? SQLite's locks are not to be trusted there."""

from __future__ import annotations

import re
from pathlib import Path

NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "afs", "9p", "glusterfs"}
)
MOUNTS = Path("/proc/mounts")


def network_filesystem(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the network file system's name that holds `path`, or None if it is local or can't be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    target = path.absolute()
    longest, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        # Later mounts hide earlier ones at the same place, hence >=.
        if (target == point or point in target.parents) and len(point.parts) >= longest:
            longest, kind = len(point.parts), fields[2]
    kind = kind.removeprefix("fuse.")
    return kind if kind in NETWORK_KINDS or kind == "sshfs" else None
