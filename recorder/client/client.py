"""The client: one method for each thing that the interface does. Spec §4, contract §2–§7."""

from recorder.client.administration import Administration
from recorder.client.datasets import Datasets
from recorder.client.recording import Recording


class Client(Recording, Datasets, Administration):
    """A connection to the service; close it, or use it as a context manager. Safe to share among threads.

    Answers are the interface's own JSON objects. Every method raises `ApiError` where the service refuses
    and `Unreachable` where it does not answer; what may safely be repeated was repeated before.
    """
