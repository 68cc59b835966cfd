"""Log-probs, entropy and gradients of the head against golden numbers and log_softmax, and what it makes, keeps and skips."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsdp_backend.model import logprob_head
from fsdp_backend.model.logprob_head import KeptTokens, LogProbHead
from tests.golden import Case, cases, each_dtype

HEAD_CASES = [case for case in cases("13_logprob_entropy") if "hidden" in case.inputs]
(TOP_P_CASE,) = (case for case in cases("13_logprob_entropy") if "keep" in case.inputs)

SetChunks = Callable[[int, int], None]


@pytest.fixture
def set_chunks(monkeypatch: pytest.MonkeyPatch) -> SetChunks:
    """Sets the tokens and the vocabulary entries in a chunk."""

    def set_both(tokens: int, vocabulary: int) -> None:
        monkeypatch.setattr(logprob_head, "TOKENS_PER_CHUNK", tokens)
        monkeypatch.setattr(logprob_head, "VOCABULARY_PER_CHUNK", vocabulary)

    return set_both


def random_head(
    tokens: int, vocabulary: int = 50, width: int = 2, bias: bool = True, dtype: torch.dtype = torch.float64
) -> tuple[LogProbHead, Tensor, Tensor]:
    """A head, hidden states and targets."""
    torch.manual_seed(0)
    head = LogProbHead(width, vocabulary, bias=bias, dtype=dtype)
    return head, torch.randn(tokens, width, dtype=dtype, requires_grad=True), torch.randint(vocabulary, (tokens,))


def kept_tokens(sets: list[list[int]]) -> KeptTokens:
    """One list of vocabulary entries a token."""
    offsets = torch.tensor([0, *map(len, sets)]).cumsum(0)
    return KeptTokens(ids=torch.tensor([i for entries in sets for i in entries], dtype=torch.int64), offsets=offsets)


def random_kept(tokens: int, vocabulary: int) -> KeptTokens:
    """Sets of many sizes, empty and whole ones too, out of order and with repetitions."""
    sizes = [0, 1, vocabulary * 3, *range(2, tokens)][:tokens]
    return kept_tokens([torch.randint(vocabulary, (size,)).tolist() for size in sizes])


def results(head: LogProbHead, hidden: Tensor, targets: Tensor, kept: KeptTokens | None = None) -> list[Tensor]:
    """Log-probs, entropy, and the gradients of a sum of both by hidden states, weight and bias."""
    log_prob, entropy = head(hidden, targets, 0.8, entropy_grad=True, kept=kept)
    return [log_prob.detach(), entropy.detach(), *gradients(head, hidden, log_prob, entropy)]


def gradients(head: LogProbHead, hidden: Tensor, log_prob: Tensor, entropy: Tensor) -> tuple[Tensor, ...]:
    weight = torch.linspace(-1, 2, len(log_prob), dtype=log_prob.dtype)
    return torch.autograd.grad((weight * log_prob + 0.3 * entropy.square()).sum(), [hidden, *head.parameters()])


def materialised(head: LogProbHead, hidden: Tensor, targets: Tensor, kept: KeptTokens | None = None) -> list[Tensor]:
    """`results` by log_softmax."""
    logits = nn.functional.linear(hidden, head.weight, head.bias) / 0.8
    keep = torch.full(logits.shape, kept is None).scatter_(1, targets[:, None], True)
    if kept is not None:
        for t, (begin, end) in enumerate(zip(kept.offsets[:-1], kept.offsets[1:], strict=True)):
            keep[t, kept.ids[begin:end]] = True
    log_probs = torch.log_softmax(logits.masked_fill(~keep, -torch.inf), -1)
    log_prob = log_probs.gather(1, targets[:, None]).squeeze(1)
    entropy = -(log_probs.exp() * log_probs.masked_fill(~keep, 0)).sum(-1)
    return [log_prob.detach(), entropy.detach(), *gradients(head, hidden, log_prob, entropy)]


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that an operation makes, those of `size` elements and more, and how many matrix products."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.largest = 0
        self.products = 0
        self._large: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
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
@pytest.mark.parametrize("chunk", [(3, 2), (1024, 4096)], ids=str)
@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_log_probs_entropy_and_gradients_are_those_of_log_softmax(
    case: Case, chunk: tuple[int, int], dtype: torch.dtype, set_chunks: SetChunks
) -> None:
    set_chunks(*chunk)
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


@pytest.mark.parametrize("chunk", [(3, 3), (1024, 4096)], ids=str)
def test_log_probs_over_the_kept_tokens_and_entropy_over_all_are_slimes(chunk: tuple[int, int], set_chunks: SetChunks) -> None:
    set_chunks(*chunk)
    case, vocabulary = TOP_P_CASE, 8
    head = LogProbHead(vocabulary, vocabulary, bias=False)
    head.weight.data = torch.eye(vocabulary)
    logits = case.tensor("logits", torch.float32).view(-1, vocabulary).requires_grad_()
    kept = kept_tokens([[i for i, keep in enumerate(row) if keep] for row in case.inputs["keep"]])
    targets = case.tensor("targets", torch.int64)  # the second is not kept

    log_prob, _ = head(logits, targets, 1.0, kept=kept)
    _, entropy = head(logits, targets, 1.0, entropy_grad=True)
    outputs = [case.tensor("grad_log_prob", torch.float32), case.tensor("grad_entropy", torch.float32)]
    torch.autograd.backward((log_prob, entropy), outputs)
    case.assert_close("log_prob", log_prob)
    case.assert_close("entropy", entropy)
    assert logits.grad is not None
    case.assert_close("grad_logits", logits.grad)


@pytest.mark.parametrize("vocabulary_per_chunk", [1, 7, 49, 50, 64])
@pytest.mark.parametrize("tokens_per_chunk", [1, 3, 10, 16])
@pytest.mark.parametrize("restricted", [False, True], ids=["all", "kept"])
def test_the_size_of_a_chunk_does_not_change_results(
    tokens_per_chunk: int, vocabulary_per_chunk: int, restricted: bool, set_chunks: SetChunks
) -> None:
    head, hidden, targets = random_head(10)
    kept = random_kept(10, 50) if restricted else None
    set_chunks(tokens_per_chunk, vocabulary_per_chunk)
    torch.testing.assert_close(results(head, hidden, targets, kept), materialised(head, hidden, targets, kept))


@pytest.mark.parametrize("restricted", [False, True], ids=["all", "kept"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_gradients_are_those_of_finite_differences(tied: bool, restricted: bool, set_chunks: SetChunks) -> None:
    set_chunks(2, 4)
    head, hidden, targets = random_head(5, vocabulary=9)
    kept = random_kept(5, 9) if restricted else None

    def outputs(weight: Tensor, bias: Tensor, hidden: Tensor) -> Any:
        states = torch.tanh(nn.functional.embedding(targets.flip(0), weight)) if tied else hidden
        return head(states, targets, 0.7, entropy_grad=True, kept=kept)

    # gradcheck moves its inputs in place, so the head sees its parameters move.
    inputs = (head.weight, head.bias, hidden if not tied else hidden.detach())
    assert torch.autograd.gradcheck(outputs, inputs)


@pytest.mark.parametrize("restricted", [False, True], ids=["all", "kept"])
def test_no_tokens_give_empty_results_and_zero_gradients(restricted: bool) -> None:
    head, hidden, targets = random_head(0)
    kept = kept_tokens([]) if restricted else None
    log_prob, entropy, _, weight_gradient, bias_gradient = results(head, hidden, targets, kept)
    assert log_prob.shape == entropy.shape == (0,)
    assert not weight_gradient.any()
    assert not bias_gradient.any()


def test_bfloat16_weights_and_states_give_float32_results_close_to_those_of_float32() -> None:
    head, hidden, targets = random_head(5, width=64, dtype=torch.bfloat16)
    low = results(head, hidden, targets)
    high = results(head.float(), hidden.detach().float().requires_grad_(), targets)
    assert [r.dtype for r in low] == [torch.float32] * 2 + [torch.bfloat16] * 3
    for got, want in zip(low, high, strict=True):
        torch.testing.assert_close(got.float(), want, atol=0.03, rtol=0.03)


def test_gradients_of_bfloat16_are_summed_over_chunks_in_float32(set_chunks: SetChunks) -> None:
    set_chunks(1, 1)
    # With logits of 0 each token adds half its upstream gradient times its state, or times 1: 256, then 64 times 1.
    # Summed in bfloat16, 256 + 1 is 256.
    head = LogProbHead(1, 2, dtype=torch.bfloat16)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    first_is_large = torch.tensor([512.0] + [2.0] * 64)
    for states, upstream, parameter in (
        (first_is_large, torch.ones(65), head.weight),
        (torch.zeros(65), first_is_large, head.bias),
    ):
        log_prob, _ = head(states.bfloat16()[:, None], torch.zeros(65, dtype=torch.int64), 1.0)
        (gradient,) = torch.autograd.grad(log_prob, parameter, upstream)
        assert gradient.flatten().tolist() == [256 + 64, -256 - 64]

    # Each entry of the vocabulary but the target takes 1/64 of its row from the hidden state's gradient.
    head = LogProbHead(1, 64, bias=False, dtype=torch.bfloat16)
    head.weight.data = torch.tensor([0.0, 64 * 256] + [64.0] * 62, dtype=torch.bfloat16)[:, None]
    state = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    head(state, torch.tensor([0]), 1.0)[0].backward()
    assert state.grad is not None
    assert state.grad.item() == -256 - 62


@each_dtype
@pytest.mark.parametrize("size", [1e5, 1e33])
def test_huge_logits_give_the_results_of_log_softmax(size: float, dtype: torch.dtype, set_chunks: SetChunks) -> None:
    set_chunks(4, 8)
    head, hidden, targets = random_head(6, dtype=dtype)
    head.weight.data *= size
    got, want = results(head, hidden, targets), materialised(head, hidden, targets)
    assert want[0].min() < -size / 10
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("excluded", [range(8), range(3, 30), range(8, 50)], ids=str)
def test_entries_of_minus_infinity_count_as_absent(excluded: range, set_chunks: SetChunks) -> None:
    set_chunks(4, 8)
    head, hidden, _ = random_head(6)
    present = [i for i in range(50) if i not in excluded]
    head.bias.data[list(excluded)] = -torch.inf
    smaller = LogProbHead(2, len(present), dtype=torch.float64)
    smaller.weight.data, smaller.bias.data = head.weight.data[present], head.bias.data[present]
    places = torch.arange(6)

    log_prob, entropy, *got = results(head, hidden, torch.tensor(present)[places])
    want_log_prob, want_entropy, *want = results(smaller, hidden, places)
    torch.testing.assert_close([log_prob, entropy, got[0]], [want_log_prob, want_entropy, want[0]])
    torch.testing.assert_close([g[present] for g in got[1:]], want[1:])
    assert not any(g[list(excluded)].any() for g in got[1:])


@each_dtype
@pytest.mark.parametrize("sets", ["the target", "nothing"])
def test_a_token_that_had_no_choice_has_log_prob_and_entropy_0_and_no_gradient(
    sets: str, dtype: torch.dtype, set_chunks: SetChunks
) -> None:
    set_chunks(4, 8)
    head, hidden, targets = random_head(6, dtype=dtype)
    head.weight.data *= 1e5
    kept = kept_tokens([[target] if sets == "the target" else [] for target in targets.tolist()])
    for result in results(head, hidden, targets, kept):
        assert not result.any()


def test_a_token_id_outside_the_vocabulary_is_not_taken_for_another() -> None:
    head, hidden, targets = random_head(6)
    targets[2] = 50
    assert head(hidden, targets, 1.0)[0].isnan().tolist() == [False, False, True, False, False, False]
    targets[2] = 0
    for bad in (-1, 50):
        with pytest.raises(ValueError, match="outside the vocabulary of 50"):
            head(hidden, targets, 1.0, kept=kept_tokens([[bad]] + [[]] * 5))


def test_a_chunk_of_logits_is_the_largest_tensor_ever_made_and_none_is_kept(set_chunks: SetChunks) -> None:
    tokens, vocabulary, width, chunk = 60, 50, 2, 8 * 16
    assert max(tokens * width, vocabulary * width) < chunk < 8 * vocabulary
    set_chunks(8, 16)
    head, hidden, targets = random_head(tokens, vocabulary, width)
    kept = kept_tokens([[1, 2]] * tokens)
    with TensorWatch(chunk) as watch:
        log_prob, entropy = head(hidden, targets, 1.0, entropy_grad=True)
        made_forward = watch.made
        assert made_forward > 0
        assert watch.alive == 0
        (log_prob.sum() + entropy.sum()).backward()
        assert watch.made > made_forward
        assert watch.largest == chunk
    with TensorWatch() as watch:
        head(hidden, targets, 1.0, kept=kept)[0].sum().backward()
    assert watch.largest == 3 * tokens  # the kept entries and the targets


def test_only_the_arguments_and_a_few_numbers_a_token_are_saved_for_backward() -> None:
    # FSDP gathers the parameter again for backward: a copy of it would hold the gathered memory in between.
    head, hidden, targets = random_head(6)
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        head(hidden, targets, 1.0, entropy_grad=True)
    arguments = [hidden, head.weight, head.bias, targets]
    own = [tensor for tensor in saved if all(tensor is not argument for argument in arguments)]
    assert all(any(tensor is argument for tensor in saved) for argument in arguments)
    assert [tensor.shape for tensor in own] == [targets.shape] * 3


@pytest.mark.parametrize(
    ("frozen", "products"), [([], 3), (["weight"], 2), (["hidden"], 2), (["weight", "bias"], 2)], ids=["none", "w", "h", "w+b"]
)
def test_a_gradient_that_is_not_needed_is_not_computed(frozen: list[str], products: int) -> None:
    head, hidden, targets = random_head(6)
    _, _, *want = results(head, hidden, targets)
    tensors = {"hidden": hidden, "weight": head.weight, "bias": head.bias}
    for name in frozen:
        tensors[name].requires_grad_(False)
    needed = [tensor for tensor in tensors.values() if tensor.requires_grad]

    log_prob, entropy = head(hidden, targets, 0.8, entropy_grad=True)
    weights = torch.linspace(-1, 2, 6, dtype=torch.float64)
    loss = (weights * log_prob + 0.3 * entropy.square()).sum()
    with TensorWatch() as watch:
        got = torch.autograd.grad(loss, needed)
    assert watch.products == products
    torch.testing.assert_close(list(got), [g for g, name in zip(want, tensors, strict=True) if name not in frozen])


def test_results_without_gradient_are_the_same_bits(set_chunks: SetChunks) -> None:
    set_chunks(4, 16)
    head, hidden, targets = random_head(10, width=16, dtype=torch.float32)
    with_gradient = head(hidden, targets, 0.7, entropy_grad=True)
    with torch.no_grad():
        without = head(hidden, targets, 0.7)
    assert all(torch.equal(a, b) for a, b in zip(with_gradient, without, strict=True))
    assert not without[0].requires_grad


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
