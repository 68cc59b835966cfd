"""Weights into engines' memory, on engines that only write down what they are sent."""

import base64
import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from fsdp_backend.distributed.bridge import Bridge
from slime.backends.fsdp_utils.weight_sender import Broadcast, Bucket, Failures, InRequests, buckets, send_weights
from tests.slime.backends.fake_engines import FakeEngine, open_engines

WEIGHTS = [("a", torch.arange(6.0).reshape(2, 3)), ("b", torch.ones(4)), ("c", torch.full((10, 10), 0.1)), ("d", torch.ones(1))]
REFUSED = (400, {"success": False, "message": "it does not fit"})
SESSION = ["/end_weight_update", "/begin_weight_update"]
ENDING = ["/end_weight_update", "/update_weight_version"]
SENT = "/update_weights_from_tensor"


def send(engines: list[FakeEngine], size: int = 10**6, bf16: bool = False, copies: int = 1) -> Failures:
    return send_weights(InRequests(copies), iter(WEIGHTS), [engine.url for engine in engines], 7, size, bf16)


def received(engine: FakeEngine, copy: int = 0) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path, body in engine.asked:
        if path == SENT:
            tensors |= dict(pickle.loads(base64.b64decode(body["serialized_named_tensors"][copy])))
    return tensors


def test_a_bucket_holds_what_fits_and_a_larger_tensor_goes_alone() -> None:
    assert [[name for name, _ in bucket] for bucket in buckets(WEIGHTS, 40, False)] == [["a", "b"], ["c"], ["d"]]
    assert [[name for name, _ in bucket] for bucket in buckets(WEIGHTS, 39, False)] == [["a"], ["b"], ["c"], ["d"]]
    assert [[name for name, _ in bucket] for bucket in buckets(WEIGHTS, 28, True)] == [["a", "b"], ["c"], ["d"]]
    assert list(buckets([], 10, False)) == []


def test_every_tensor_arrives_once_within_a_session_and_the_version_comes_last() -> None:
    with open_engines({}, {}) as engines:
        assert send(engines, size=40) == {}
        for engine in engines:
            assert engine.paths() == [*SESSION, SENT, SENT, SENT, *ENDING]
            got = received(engine)
            assert list(got) == ["a", "b", "c", "d"]
            assert all(torch.equal(got[name], tensor) for name, tensor in WEIGHTS)
            assert engine.version == "7"


def test_matrices_travel_in_bfloat16_where_the_engine_computes_in_it_and_vectors_stay() -> None:
    with open_engines({}) as (engine,):
        assert send([engine], bf16=True) == {}
        types = {name: tensor.dtype for name, tensor in received(engine).items()}
    assert types == {"a": torch.bfloat16, "b": torch.float32, "c": torch.bfloat16, "d": torch.float32}


def test_each_gpu_of_an_engine_gets_a_copy() -> None:
    with open_engines({}) as (engine,):
        assert send([engine], copies=2) == {}
        assert received(engine, 0).keys() == received(engine, 1).keys()


def test_an_engine_that_refuses_a_bucket_is_left_out_of_the_rest_and_keeps_its_version() -> None:
    with open_engines({SENT: REFUSED}, {}) as (bad, good):
        assert send([bad, good], size=40) == {bad.url: "answered 400: it does not fit"}
        assert bad.paths() == [*SESSION, SENT, "/end_weight_update"]
        assert (bad.version, good.version) == ("0", "7")


def test_one_that_can_not_be_reached_or_begin_is_left_out_too() -> None:
    with open_engines({}, {"/begin_weight_update": REFUSED}, {}) as (gone, bad, good):
        gone.close()
        failures = send([gone, bad, good])
        assert failures.keys() == {gone.url, bad.url}
        assert failures[gone.url].startswith("can't be reached: ")
        assert SENT not in bad.paths()
        assert (bad.version, good.version) == ("0", "7")


def test_a_server_without_sessions_gets_its_weights_without() -> None:
    nothing = (404, {"detail": "Not Found"})
    with open_engines({"/begin_weight_update": nothing, "/end_weight_update": nothing}) as (engine,):
        assert send([engine]) == {}
        assert (len(received(engine)), engine.version) == (4, "7")


def test_where_no_engine_is_left_nothing_is_sent_and_the_carrier_is_closed() -> None:
    class Counting(InRequests):
        carried, closed = 0, 0

        def carry(self, urls: Sequence[str], bucket: Bucket) -> Any:
            self.carried += 1
            return dict.fromkeys(urls, "broken")

        def close(self) -> None:
            self.closed += 1

    with open_engines({}) as (engine,):
        carrier = Counting(1)
        assert send_weights(carrier, iter(WEIGHTS), [engine.url], 7, 1, False) == {engine.url: "broken"}
        assert (carrier.carried, carrier.closed, engine.version) == (1, 1, "0")


class BreaksOff:
    """A group whose broadcasts never come to an end."""

    def is_completed(self) -> bool:
        return False


def test_a_broadcast_that_one_engine_refuses_is_given_up_for_all_and_their_group_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_engines({"/update_weights_from_distributed": REFUSED}, {}) as (bad, good):
        carrier = Broadcast(1, timedelta(seconds=20))
        monkeypatch.setattr(Bridge, "open", lambda self: None)
        monkeypatch.setattr("torch.distributed.broadcast", lambda *args, **kwargs: BreaksOff())
        failures = send_weights(carrier, iter(WEIGHTS), [bad.url, good.url], 7, 40, False)
        assert failures == {bad.url: "answered 400: it does not fit", good.url: "another engine failed"}
        for engine, rank in ((bad, 1), (good, 2)):
            asked = dict(engine.asked)
            joined = asked["/init_weights_update_group"]
            assert (joined["rank_offset"], joined["world_size"]) == (rank, 3)
            assert asked["/destroy_weights_update_group"] == {"group_name": joined["group_name"]}
            assert engine.version == "0"


def test_the_group_is_kept_for_the_same_engines_and_opened_anew_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bridge, "open", lambda self: None)
    with open_engines({}, {}, {}) as engines:
        carrier = Broadcast(2, timedelta(seconds=20))
        urls = [engine.url for engine in engines]
        for members in (urls[:2], urls[:2], urls[1:]):
            assert carrier.prepare(members) == {}
        joined = [[body["group_name"] for path, body in e.asked if path == "/init_weights_update_group"] for e in engines]
        assert joined == [["weights_1"], ["weights_1", "weights_2"], ["weights_2"]]
        last = [body for path, body in engines[2].asked if path == "/init_weights_update_group"][-1]
        assert (last["rank_offset"], last["world_size"]) == (3, 5)


def test_a_group_that_does_not_come_about_is_a_failure_of_every_engine() -> None:
    # It says that it joins, and does not.
    with open_engines({}) as (engine,):
        failures = send_weights(Broadcast(1, timedelta(seconds=1)), iter(WEIGHTS), [engine.url], 7, 40, False)
        assert failures[engine.url].startswith("the process group with the engines did not come about: ")
        assert engine.version == "0"
