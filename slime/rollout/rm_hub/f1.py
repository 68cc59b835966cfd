"""Overlap of words, as the SQuAD and HotpotQA evaluations count it."""

import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE_ANSWERS = {"yes", "no", "noanswer"}


def normalize_answer(s: str) -> str:
    """Lower case, without punctuation, articles and spare white space."""
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", s.lower().translate(_PUNCTUATION)).split())


def f1_score(prediction: str | None, ground_truth: object) -> tuple[float, float, float]:
    """F1, precision and recall of the words of the prediction. A yes, no or noanswer on either side must be the other's all."""
    given, right = normalize_answer(prediction or ""), normalize_answer(str(ground_truth))
    if given != right and _WHOLE_ANSWERS & {given, right}:
        return 0.0, 0.0, 0.0
    shared = (Counter(given.split()) & Counter(right.split())).total()
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(given.split()), shared / len(right.split())
    return 2 * precision * recall / (precision + recall), precision, recall
