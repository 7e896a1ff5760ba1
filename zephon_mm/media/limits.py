"""How much work a clip may ask for. Limits count packets and pixels, never seconds.

What is above them is not a clip that can be used: a problem in its probe, or damage.
"""

from __future__ import annotations

MAX_PACKETS = 1 << 21
"""Packets of a clip: 19 hours at 30 frames a second."""

MAX_FRAME_PIXELS = 1 << 26
"""Stored pixels of a frame, 8192 x 8192, told to FFmpeg so that no room is made for more.

The largest level of H.264, VP9 and AV1 has 35.7 million.
"""

MAX_PIXELS = 1 << 40
"""Packets times frame size that one call may decode: 5 hours of 1080p at 30 frames a second."""

MAX_HELD_BYTES = 1 << 28
"""RGB of a clip that is held at a time, for libraries that give it; one frame may be larger."""
