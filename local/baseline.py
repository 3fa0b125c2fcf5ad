"""A plain text classifier to hold an agent against: TF-IDF of words and pairs of words, and logistic regression.

It needs scikit-learn, which is a dependency of development alone.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from local.labelled import BadLinesError, Line
from local.measure import Decision

NAME = "TF-IDF, logistic regression"


def learn(train: Sequence[Line]) -> Callable[[Sequence[Line]], list[Decision]]:
    """Learns from lines, of which those without a label teach nothing. Returns what says something of others.

    Raises:
        BadLinesError: the lines teach nothing: one label alone, or texts without words.
        ImportError: scikit-learn is not installed.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    taught = [line for line in train if line.label is not None]
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    labels = {line.label for line in taught}
    if len(labels) < 2:
        raise BadLinesError(
            f"a classifier needs lines of two labels to learn; these have {len(labels)}"
        )
    try:
        model.fit([line.text for line in taught], [line.label for line in taught])
    except ValueError as error:
        raise BadLinesError(f"a classifier learns nothing of these lines: {error}") from error
    return lambda lines: _decide(model, lines)


def _decide(model: Any, lines: Sequence[Line]) -> list[Decision]:
    found = []
    for line in lines:
        began = time.perf_counter()
        [shares] = model.predict_proba([line.text])
        best = shares.argmax()
        took = (time.perf_counter() - began) * 1000
        label = str(model.classes_[best])
        found.append(Decision(line, label, float(shares[best]), latency_ms=took))
    return found
