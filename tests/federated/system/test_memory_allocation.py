import subprocess
import sys

import pytest

from federated.system.c_library import find_function

ALLOCATE = """
import resource, threading
from federated.system import memory_allocation
{choose}

def receive(times):
    for _ in range(times):
        chunks = [bytes(256 << 10) for _ in range(16)]
        del chunks

def count(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def main():
    receive(4)
    print(count(lambda: receive(50)))

thread = threading.Thread(target=main)
thread.start()
thread.join()
"""


def count_faults(choose: str) -> int:
    """Return the pages that the system mapped while 800 chunks came and went."""
    code = ALLOCATE.format(choose=choose)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)


@pytest.mark.skipif(find_function("mallopt") is None, reason="another C library than glibc")
def test_freed_chunks_are_kept_for_the_next_ones_unless_they_are_returned_at_once() -> None:
    kept = count_faults("memory_allocation.keep_chunks()")
    returned = count_faults("memory_allocation.return_at_once()")
    assert kept < 1000 < returned
