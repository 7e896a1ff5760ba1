"""The short way through a tokeniser, for texts that half of its work leaves as they are.

Before a text reaches its pre-tokeniser, the backend searches it for added tokens and brings it into
Unicode's normal form C (Qwen's and others' do): a tenth and more of its time, and almost every text
comes out as it went in. What surely does is found faster than it is done again; such a text goes
to a tokeniser of the same parts, with nothing before the pre-tokeniser. The ids are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

_MOST_STARTS = 8  # to look for in each text
# Characters that no normalisation to form C touches, whatever stands beside them: each is its own
# normal form, composes with nothing before it and is no mark that could change places. Unicode
# promises that this stays so for characters it has assigned.
STABLE = (
    "\x00-\u02ff\u0388-\u0389\u038c\u038e-\u03a1\u03a3-\u03ff\u0400-\u0482\u048a-\u052f"
    "\u200b-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u2328\u232b-\u23ff\u2460-\u2adb\u3000-\u3029"
    "\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9ffc\uac00-\ud7a3\ufe0f\uff01-\uffbe"
    "\U0001f300-\U0001f6d7"
)
_UNSTABLE = re.compile(f"[^{STABLE}]")


class PlainTexts:
    """Encodes texts of samples, by the short way where that gives the same ids.

    Args:
        backend: the tokeniser.
        words: the added tokens that it looks for in a text.
    """

    def __init__(self, backend: Backend, words: Sequence[str]) -> None:
        self._whole = backend.encode_batch_fast
        self._short = None
        normalizer = backend.normalizer
        self._form_c = type(normalizer).__name__ == "NFC"
        self._starts = tuple({word[:2] for word in words if word})
        known = normalizer is None or (self._form_c and "".join(words).isascii())
        if known and len(self._starts) <= _MOST_STARTS:
            short = type(backend)(backend.model)  # shares the model and the words it remembers
            short.pre_tokenizer = backend.pre_tokenizer
            short.post_processor = backend.post_processor
            self._short = short.encode_batch_fast

    def is_plain(self, text: str) -> bool:
        """Whether the short way gives this text's ids."""
        if self._short is None:
            return False
        for start in self._starts:
            if start[0] in text and start in text:  # a single character is found faster
                return False
        return not self._form_c or text.isascii() or _UNSTABLE.search(text) is None

    def encode(self, text: str) -> Encoding:
        """The tokens of one text, nothing added before or after it."""
        encode = self._short if self._short is not None and self.is_plain(text) else self._whole
        return encode([text], add_special_tokens=False)[0]
