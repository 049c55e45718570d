"""What the extender says in words survives kube-scheduler, which formats it as Go's fmt does."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from egpu_base.api.extender import ExtenderBindingResult, ExtenderFilterAnswer, in_words


def sprintf(text: str) -> str:
    """Go's `fmt.Sprintf(text)` without arguments: `%%` is a percent sign, any other verb has none to show."""

    def verb(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return f"%!{found['verb']}(MISSING)" if found["verb"] else "%!(NOVERB)"

    return re.sub(r"%[-+# 0-9.*]*(?P<verb>[^-+# 0-9.*])?", verb, text, flags=re.DOTALL)


def test_go_would_spoil_a_percent_sign() -> None:
    assert sprintf("10 % and more") == "10 %!a(MISSING)nd more"
    assert sprintf("100 %") == "100 %!(NOVERB)"
    assert sprintf("100 %%") == "100 %"


@given(st.text(st.sampled_from("ab %,0\n")) | st.text())
@example("card 0 has 40 % of compute free, 60 % needed")
@example("100%")
def test_what_is_said_is_read_the_same_in_event_and_condition(reason: str) -> None:
    said = [in_words(reason), ExtenderFilterAnswer(error=reason).error, ExtenderBindingResult(error=reason).error]
    for text in said:
        assert sprintf(text) == text
        assert text == re.sub(" ?%", " percent", reason)
