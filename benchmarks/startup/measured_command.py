"""Run a command, and print its exit code, processor seconds and peak memory as JSON.

The system counts the memory of the process that starts a command as part of the command's peak, so
this small process stands between a benchmark and the command.
"""

import json
import os
import sys

__all__ = ["main"]


def main() -> None:
    command = sys.argv[1:]
    silence = os.open(os.devnull, os.O_WRONLY)
    pid = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, silence, 1)]
    )
    _, status, usage = os.wait4(pid, 0)
    found = {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
