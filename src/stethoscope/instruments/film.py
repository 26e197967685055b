"""A film of pictures, by the ffmpeg that is on this machine.

No extra of ours brings ffmpeg: the build that comes as a Python wheel is GPL. Where there is none, the error says how to
get it and what can be written without.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stethoscope.record import StethoscopeError


class NoEncoderError(StethoscopeError):
    """There is no ffmpeg here, or it could not do it."""


def find_ffmpeg() -> str:
    """The program that is on the PATH."""
    found = shutil.which("ffmpeg")
    if found is None:
        raise NoEncoderError(
            "An mp4 needs the program ffmpeg, and there is none on the PATH",
            do="Install it (apt install ffmpeg, brew install ffmpeg), or end the name in .html, which needs nothing more",
        )
    return found


def write_mp4(pictures: Sequence[npt.NDArray[np.uint8]], path: Path, frames_per_second: float) -> None:
    """H.264, or MPEG-4 where this ffmpeg has no encoder for it; sides made even, as both ask."""
    program = find_ffmpeg()
    frames = [_even(picture) for picture in pictures]
    height, width = frames[0].shape[:2]
    failed = ""
    for encoder in ("libx264", "libopenh264", "mpeg4"):
        command = [
            program,
            "-y",
            "-loglevel",
            "error",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            f"{width}x{height}",
            "-r",
            f"{frames_per_second:g}",
            "-i",
            "-",
            "-an",
            "-c:v",
            encoder,
            "-pix_fmt",
            "yuv420p",
            "-movflags",
            "+faststart",
            "-f",
            "mp4",
            str(path),
        ]
        done = subprocess.run(
            command, input=b"".join(frame.tobytes() for frame in frames), capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        failed = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:][0] if done.stderr.strip() else ""
    raise NoEncoderError(
        f"ffmpeg could not write the film ({failed or 'no reason given'})", where=path, do="Try .gif or .html"
    )


def _even(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    height, width = picture.shape[:2]
    return np.ascontiguousarray(picture[: height - height % 2, : width - width % 2])
