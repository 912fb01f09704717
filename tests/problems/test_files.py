import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

import blocklp as bl
from blocklp.errors import FormatError, TimeLimitError
from blocklp.problems.files import format_suffix, read_bytes, read_text

DATA = bytes(range(256)) * 5000


@pytest.mark.parametrize("compress", [lambda b: b, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gzip", "bzip2", "xz"])
def test_a_file_is_read_whole_by_its_first_bytes_whatever_its_name(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(compress(DATA))
    assert read_bytes(file) == DATA


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_more_than_the_limit_is_refused_and_what_is_cut_off_is_damaged(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    bomb, cut = tmp_path / "bomb.gz", tmp_path / "cut"
    bomb.write_bytes(compress(b"0" * 2**24))
    cut.write_bytes(compress(DATA)[:-20])
    with pytest.raises(FormatError, match="more than 1048576 bytes once decompressed; raise max_bytes"):
        read_bytes(bomb, max_bytes=2**20)
    with pytest.raises(FormatError, match="damaged"):
        read_bytes(cut)


def test_the_suffix_of_the_format_is_found_in_any_case_below_any_compression() -> None:
    assert [format_suffix(p) for p in ("a.CLQ.xz", "b.b.sparse.GZ", "c", "d.gz", "e.uai.zst")] == [".clq", ".sparse", "", "", ".uai"]


def test_reading_gives_up_at_the_deadline_and_refuses_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="is not text in UTF-8"):
        read_text(file)
    with pytest.raises(TimeLimitError, match="while reading"):
        read_bytes(file, deadline=bl.Deadline(1.0, began=-10.0))
    file.write_bytes("\ufeffnaïve".encode())
    assert read_text(file) == "naïve"
