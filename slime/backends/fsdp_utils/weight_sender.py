"""The actor's weights on their way into rollout engines' memory, bucket by bucket. All of it runs on the actor's first rank.

An update is a session of SGLang's: begun, filled, ended, and only then given its version, so that an engine whose update broke
off does not pass for a new one.
"""

import base64
import pickle
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch.distributed as dist
from torch import Tensor

from fsdp_backend import device
from fsdp_backend.distributed.bridge import Bridge
from slime.backends.ask import Answer, ask, ask_all

Bucket = list[tuple[str, Tensor]]
Failures = dict[str, str]
"""What went wrong, by engine."""


class Carrier(Protocol):
    """A way for a bucket to travel. What fails at one engine may fail at others with it."""

    def prepare(self, urls: Sequence[str]) -> Failures:
        """Before the first bucket."""

    def carry(self, urls: Sequence[str], bucket: Bucket) -> Failures:
        """One bucket, to each of them."""

    def close(self) -> None:
        """No more buckets; the next update may use it again."""


def send_weights(
    carrier: Carrier, weights: Iterable[tuple[str, Tensor]], urls: Sequence[str], version: int, bucket_bytes: int, bf16: bool
) -> Failures:
    """Bring `weights` to every engine as this version. Engines that fail are left out of the rest."""
    session = _Session(urls)
    ask_all(urls, "/end_weight_update", {})  # one that a run before this left open would be in the way
    # Before there were sessions there was no such address.
    session.keep({url: a for url, a in ask_all(urls, "/begin_weight_update", {}).items() if a.status != 404})
    session.drop(carrier.prepare(session.urls))
    for bucket in buckets(weights, bucket_bytes, bf16):
        if session.urls:
            session.drop(carrier.carry(session.urls, bucket))
    ends = ask_all(urls, "/end_weight_update", {})
    session.keep({url: answer for url, answer in ends.items() if answer.status != 404 and url in session.urls})
    session.keep(ask_all(session.urls, "/update_weight_version", {"new_version": str(version), "abort_all_requests": False}))
    if session.failures:
        carrier.close()
    return session.failures


class _Session:
    """Who still takes part."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls, self.failures = list(urls), Failures()

    def keep(self, answers: dict[str, Answer]) -> None:
        """Only those that did what they were asked."""
        self.drop({url: str(answer) for url, answer in answers.items() if not answer.ok})

    def drop(self, failures: Failures) -> None:
        """These take no further part."""
        self.failures |= failures
        self.urls = [url for url in self.urls if url not in failures]


def buckets(weights: Iterable[tuple[str, Tensor]], most_bytes: int, bf16: bool) -> Iterator[Bucket]:
    """Tensors together up to `most_bytes`; a larger one is a bucket by itself. With `bf16`, matrices in that type: what an
    engine keeps in float32 are vectors."""
    bucket: Bucket = []
    size = 0
    for name, full in weights:
        tensor = full.bfloat16() if bf16 and full.is_floating_point() and full.dim() > 1 else full
        if bucket and size + tensor.nbytes > most_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor.contiguous()))
        size += tensor.nbytes
    if bucket:
        yield bucket


class InRequests:
    """Buckets in the bodies of HTTP requests."""

    def __init__(self, gpus_per_engine: int) -> None:
        self.copies = gpus_per_engine

    def prepare(self, urls: Sequence[str]) -> Failures:
        """Nothing to do."""
        return {}

    def carry(self, urls: Sequence[str], bucket: Bucket) -> Failures:
        """As a pickle of host tensors, which an engine reads without running code; one for each of its GPUs."""
        packed = base64.b64encode(pickle.dumps(bucket)).decode()
        payload = {"serialized_named_tensors": [packed] * self.copies, "flush_cache": True}
        answers = ask_all(urls, "/update_weights_from_tensor", payload)
        return {url: str(answer) for url, answer in answers.items() if not answer.ok}

    def close(self) -> None:
        """Nothing stays open."""


class Broadcast:
    """Buckets by one broadcast to all engines, in a process group that stays open while the engines stay the same."""

    def __init__(self, gpus_per_engine: int, timeout: timedelta) -> None:
        self.width, self.timeout = gpus_per_engine, timeout
        self.bridge: Bridge | None = None
        self.members: list[str] = []
        self.opened = 0
        self.pool = ThreadPoolExecutor(thread_name_prefix="weights")

    def prepare(self, urls: Sequence[str]) -> Failures:
        """Open the group, if it is not open with just these engines. A group is whole or it is none."""
        if not urls or (self.bridge is not None and self.members == list(urls)):
            return {}
        self.close()
        self.opened += 1
        size, name = 1 + self.width * len(urls), f"weights_{self.opened}"
        self.bridge, self.members = Bridge(_address_towards(urls[0]), name, size, self.timeout), list(urls)
        payload: dict[str, Any] = {"master_address": self.bridge.address, "master_port": self.bridge.port, "group_name": name}
        payload |= {"world_size": size, "backend": device.device_backend()}
        joining = {
            url: self.pool.submit(self._ask, url, "/init_weights_update_group", payload | {"rank_offset": 1 + i * self.width})
            for i, url in enumerate(urls)
        }
        try:
            self.bridge.open()
        except (RuntimeError, ValueError) as error:
            return self._broken(joining, f"the process group with the engines did not come about: {error}")
        return self._answers(joining)

    def carry(self, urls: Sequence[str], bucket: Bucket) -> Failures:
        """Every engine receives what it has been told to expect."""
        assert self.bridge is not None
        group = self.bridge.group
        payload = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self.bridge.name,
            "flush_cache": True,
        }
        receiving = {url: self.pool.submit(self._ask, url, "/update_weights_from_distributed", payload) for url in urls}
        tensors = [tensor.to(device.current()) for _, tensor in bucket]
        try:
            works = [dist.broadcast(tensor, src=0, group=group, async_op=True) for tensor in tensors]
            while not all(work is None or work.is_completed() for work in works):
                if any(future.done() and not future.result().ok for future in receiving.values()):
                    return self._broken(receiving, "another engine failed")
                time.sleep(0.001)
            for work in works:
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            return self._broken(receiving, str(error))
        return self._answers(receiving)

    def _ask(self, url: str, path: str, payload: dict[str, Any]) -> Answer:
        return ask(url, path, payload, self.timeout.total_seconds())

    def _answers(self, asked: dict[str, "Future[Answer]"]) -> Failures:
        failures = {url: str(future.result()) for url, future in asked.items() if not future.result().ok}
        return self._broken(asked, "another engine failed") if failures else {}

    def _broken(self, asked: dict[str, "Future[Answer]"], why: str) -> Failures:
        """Nobody has the bucket for sure. Without the group, those that still wait for it give up."""
        self.close()
        return {url: why if future.result().ok else str(future.result()) for url, future in asked.items()}

    def close(self) -> None:
        """Leave the group, and let the engines leave it."""
        bridge, self.bridge = self.bridge, None
        if bridge is not None:
            with suppress(RuntimeError):  # it may be broken already
                bridge.close()
            ask_all(self.members, "/destroy_weights_update_group", {"group_name": bridge.name}, timeout=_LEAVE_SECONDS)


_LEAVE_SECONDS = 10.0


def _address_towards(url: str) -> str:
    """This machine's address as the engine sees it."""
    to = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((to.hostname, to.port))
        address: str = probe.getsockname()[0]
    return address


def carrier(transport: str, gpus_per_engine: int, timeout_minutes: float) -> Carrier:
    """The one for --update-weight-transport nccl or tensor."""
    if transport == "tensor":
        return InRequests(gpus_per_engine)
    return Broadcast(gpus_per_engine, timedelta(minutes=timeout_minutes))
