"""DeepScaleR's reward: a boxed answer, given after the thinking."""

from slime.rollout.rm_hub.math_utils import extract_answer, grade_answer_verl


def get_deepscaler_rule_based_reward(response: str, label: object) -> int:
    """1 if the last \\boxed{...} after </think> (or else after ###Response) equals the label, else 0.

    A response that never ends its thinking is worth 0.
    """
    for mark in ("</think>", "###Response"):
        _, found, solution = response.rpartition(mark)
        if found:
            answer = extract_answer(solution)
            return int(answer is not None and grade_answer_verl(f"\\boxed{{{answer}}}", label))
    return 0
