"""Symptoms, as the headings of the page *Troubleshooting*. Findings name the heading that describes their remedy."""

from enum import StrEnum
from typing import Final

PAGE: Final = "docs/operate/troubleshooting.md"


class Symptom(StrEnum):
    """The anchor of a heading. A test checks that the page has each of them."""

    REFUSED = "a-pod-or-claim-is-refused-when-it-is-created"
    WITHOUT_GPU = "a-pod-starts-without-its-gpu"
    PENDING = "a-pod-stays-pending"
    NOT_STARTED = "a-pod-has-a-node-and-does-not-start"
    GETS_ERROR = "a-program-gets-an-error"
    KILLED = "a-program-was-killed"
    SLOW = "a-program-is-slow"
    CLAIM = "a-claim-does-not-do-what-you-expect"
    CARD = "a-card-takes-no-new-pods"
    CLUSTER = "nodes-pool-and-cluster"

    @property
    def link(self) -> str:
        """Return the page and its heading, as a path in the repository."""
        return f"{PAGE}#{self.value}"
