"""Write finished rounds as scalars for TensorBoard to the folder `tensorboard` in the run's folder;
needs the extra `tensorboard`.

tensorboardX writes them; it needs neither TensorFlow nor TensorBoard.
"""

from __future__ import annotations

from coordinator.observe.event_readers.reader import ReaderContext, round_scalars
from coordinator.observe.events import Event, Publish, RoundEnded, RunEnded
from federated.errors import require_extra

__all__ = ["FOLDER", "write_tensorboard"]

FOLDER = "tensorboard"


def write_tensorboard(context: ReaderContext) -> Publish:
    """Make a reader that writes each finished round. Raises MissingExtra."""
    with require_extra("the reader 'tensorboard'", "tensorboard", "tensorboardX"):
        from tensorboardX import SummaryWriter
    writer = SummaryWriter(str(context.folder / FOLDER))

    def read(event: Event) -> None:
        match event:
            case RoundEnded(done):
                for name, value in round_scalars(done).items():
                    writer.add_scalar(name, value, done.round)
                writer.flush()
            case RunEnded():
                writer.close()
            case _:
                pass

    return read
