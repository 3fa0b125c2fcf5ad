"""A plain text classifier to hold an agent against: TF-IDF of words and pairs of words, and logistic regression.

It needs scikit-learn, which is a dependency of development alone.
"""

import time
from collections.abc import Sequence

from local.labelled import Line
from local.measure import Decision

NAME = "TF-IDF, logistic regression"


def decide(train: Sequence[Line], lines: Sequence[Line]) -> list[Decision]:
    """What the classifier says of each line once it has learned from others; lines without a label teach it nothing.

    Raises:
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
    model.fit([line.text for line in taught], [line.label for line in taught])
    found = []
    for line in lines:
        began = time.perf_counter()
        [shares] = model.predict_proba([line.text])
        best = shares.argmax()
        took = (time.perf_counter() - began) * 1000
        label = str(model.classes_[best])
        found.append(Decision(line, label, float(shares[best]), latency_ms=took))
    return found
