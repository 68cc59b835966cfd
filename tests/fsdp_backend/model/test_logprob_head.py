"""Log-probs, entropy and gradients of the head against golden numbers, and the promise of never holding all logits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsdp_backend.model import logprob_head
from fsdp_backend.model.logprob_head import LogProbHead
from tests.golden import Case, cases, each_dtype

HEAD_CASES = [case for case in cases("13_logprob_entropy") if "hidden" in case.inputs]


def random_head(
    tokens: int, vocabulary: int = 50, width: int = 2, bias: bool = True, dtype: torch.dtype = torch.float64
) -> tuple[LogProbHead, Tensor, Tensor]:
    """A head, hidden states and targets."""
    torch.manual_seed(0)
    head = LogProbHead(width, vocabulary, bias=bias, dtype=dtype)
    return head, torch.randn(tokens, width, dtype=dtype, requires_grad=True), torch.randint(vocabulary, (tokens,))


def results(head: LogProbHead, hidden: Tensor, targets: Tensor) -> list[Tensor]:
    """Log-probs, entropy, and the gradients of a sum of both by hidden states, weight and bias."""
    log_prob, entropy = head(hidden, targets, 0.8, entropy_grad=True)
    gradients = torch.autograd.grad((log_prob + 0.3 * entropy.square()).sum(), [hidden, *head.parameters()])
    return [log_prob.detach(), entropy.detach(), *gradients]


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of every tensor that an operation makes, and which of those of `size` elements and more stay in memory."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.largest = 0
        self._large: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                if tensor.numel() >= self.size:
                    self._large.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]
        return made

    @property
    def made(self) -> int:
        return len(self._large)

    @property
    def alive(self) -> int:
        return sum(not reference.expired() for reference in self._large)


@each_dtype
@pytest.mark.parametrize("tokens_per_chunk", [3, 1024])
@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_log_probs_entropy_and_gradients_are_those_of_log_softmax(
    case: Case, tokens_per_chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprob_head, "TOKENS_PER_CHUNK", tokens_per_chunk)
    targets = case.tensor("targets", torch.int64)
    hidden = case.tensor("hidden", dtype).view(len(targets), -1).requires_grad_()
    head = LogProbHead(hidden.shape[1], len(case.inputs["weight"]), bias=False, dtype=dtype)
    head.weight.data = case.tensor("weight", dtype).view_as(head.weight)

    log_prob, entropy = head(hidden, targets, case.params["temperature"], entropy_grad=True)
    torch.autograd.backward((log_prob, entropy), (case.tensor("grad_log_prob", dtype), case.tensor("grad_entropy", dtype)))
    case.assert_close("log_prob", log_prob)
    case.assert_close("entropy", entropy)
    assert hidden.grad is not None
    assert head.weight.grad is not None
    case.assert_close("grad_hidden", hidden.grad)
    case.assert_close("grad_weight", head.weight.grad)
    assert log_prob.dtype == entropy.dtype == dtype


@pytest.mark.parametrize("tokens", [1, 3, 10, 12])
def test_the_size_of_a_chunk_does_not_change_results(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden, targets = random_head(tokens)
    whole = results(head, hidden, targets)
    monkeypatch.setattr(logprob_head, "TOKENS_PER_CHUNK", 3)
    torch.testing.assert_close(results(head, hidden, targets), whole)


def test_a_bias_takes_part() -> None:
    head, hidden, targets = random_head(6)
    log_prob, _ = head(hidden, targets, 0.5)
    logits = nn.functional.linear(hidden, head.weight, head.bias) / 0.5
    torch.testing.assert_close(log_prob, -nn.functional.cross_entropy(logits, targets, reduction="none"))


def test_no_tokens_give_empty_results_and_zero_gradients() -> None:
    head, hidden, targets = random_head(0)
    log_prob, entropy, _, weight_gradient, bias_gradient = results(head, hidden, targets)
    assert log_prob.shape == entropy.shape == (0,)
    assert not weight_gradient.any()
    assert not bias_gradient.any()


def test_bfloat16_weights_and_states_give_float32_results() -> None:
    head, hidden, targets = random_head(5, dtype=torch.bfloat16)
    log_prob, entropy = head(hidden, targets, 1.0)
    assert log_prob.dtype == entropy.dtype == torch.float32


def test_no_more_than_one_chunk_of_logits_is_ever_made_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk, vocabulary = 4, 50
    monkeypatch.setattr(logprob_head, "TOKENS_PER_CHUNK", chunk)
    head, hidden, targets = random_head(60, vocabulary)
    with TensorWatch(chunk * vocabulary) as watch:
        log_prob, entropy = head(hidden, targets, 1.0, entropy_grad=True)
        made_forward = watch.made
        assert made_forward > 0
        assert watch.alive == 0
        (log_prob.sum() + entropy.sum()).backward()
    assert watch.made > made_forward
    assert watch.largest == chunk * vocabulary


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_made_of_a_linear_shares_its_very_parameters(bias: bool) -> None:
    linear, embedding = nn.Linear(2, 7, bias=bias), nn.Embedding(7, 2)
    linear.weight = embedding.weight
    head = LogProbHead.of(linear)
    assert head.weight is embedding.weight
    assert head.bias is linear.bias
    assert dict(head.named_parameters()).keys() == dict(linear.named_parameters()).keys()


def test_entropy_carries_a_gradient_only_when_asked() -> None:
    head, hidden, targets = random_head(5)
    log_prob, silent = head(hidden, targets, 1.0, entropy_grad=False)
    _, live = head(hidden, targets, 1.0, entropy_grad=True)
    assert log_prob.requires_grad
    assert live.requires_grad
    assert not silent.requires_grad
    assert torch.equal(silent, live.detach())
