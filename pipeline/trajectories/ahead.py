"""Reading ahead in a thread."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same ``items``, up to ``depth`` of them made in a thread of their own before they are asked for.

    Arrow and NumPy let go of the interpreter's lock in their loops, so that reading a batch overlaps with checking,
    hashing and writing the one before. An exception in ``items`` comes out where its item would have. A consumer that
    stops early, or is stopped by an error, ends the thread before it goes on.
    """
    waiting: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def hand_over(item: tuple[T] | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not hand_over((item,)):
                    break
            else:
                hand_over(None)
        except BaseException as wrong:
            hand_over(wrong)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()
        thread.join()
