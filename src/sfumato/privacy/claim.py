"""The claim of a run folder: one process at a time, from before the first row is read until the run is sealed.

It is a lock on the file `run.lock`, which the operating system drops when the process ends, however it ends. The locks and syncs
of network file systems are not relied on: folders there are refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from sfumato.errors import BadInput, OutOfResources, RunConflict, out_of_resources
from sfumato.files import make_folder, sweep

LOCK = "run.lock"
_NETWORKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "ceph", "glusterfs")


class Claim:
    """The lock of a run folder: one process at a time, until it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._made = not folder.exists()
            make_folder(folder, mode=0o600)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(
                f"{folder} is a file, or below one; give --out a folder that does not exist yet."
            ) from None
        except (OSError, ValueError) as error:
            if (lack := out_of_resources(error)) is not None:
                raise OutOfResources(lack.args[0], str(folder)) from error
            why = getattr(error, "strerror", None) or str(error)
            raise BadInput(
                f"Cannot make {folder}: {why}; choose a folder that can be written to."
            ) from error
        sweep(folder)
        refuse_network(folder, "give --out a folder on a local disk and copy the finished run")
        while True:
            self._handle = _opened(folder / LOCK)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._handle)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise RunConflict(
                    f"Another process is working on the run in {folder}; wait for it or stop it, then resume."
                ) from None
            # Whoever gave up a folder in which nothing was begun took the lock's file with it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._handle), (folder / LOCK).stat()):
                    break
            os.close(self._handle)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def drop(self, *, remove: bool) -> None:
        if remove and self._made:
            with contextlib.suppress(OSError):
                if {p.name for p in self.folder.iterdir()} == {LOCK}:
                    (self.folder / LOCK).unlink()
                    self.folder.rmdir()
        os.close(self._handle)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if (lack := out_of_resources(error)) is not None:
            raise OutOfResources(lack.args[0], str(path)) from error
        raise BadInput(
            f"Cannot write {path}: {error.strerror}; choose a folder that can be written to."
        ) from error


def refuse_network(folder: Path, remedy: str) -> None:
    """Locks and syncs may mean nothing on a file system of another machine."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    place, kind = "", ""
    real = os.path.realpath(folder)
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(place):
            place, kind = mount, words[2]
    if kind in _NETWORKS:
        raise BadInput(
            f"{folder} is on a network file system ({kind}), whose locks cannot keep two processes apart; {remedy}."
        )
