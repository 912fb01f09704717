"""Downloads of benchmark sets, from a server on this machine."""

import csv
import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blocklp.errors import FormatError, OptionError
from blocklp.problems import cli
from blocklp.problems.verification import fetch
from blocklp.problems.verification.batch import read_expected, read_instances
from blocklp.problems.verification.fetch import BenchmarkSet, Remote, benchmark_sets, checksum, fetch_set

SHARED = Path(__file__).parents[4] / "shared" / "data" / "verification"
FOLDERS = {"mnistfc": "mnist_fc", "test": "smoke"}
FILES = {"deep/a net.onnx": bytes(range(256)) * 700, "b.vnnlib": b"(assert (>= Y_0 0.0))\n"}


class Server(ThreadingHTTPServer):
    """Serves files; ``cuts`` says after how many bytes each further answer breaks off."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.ranges, self.asked = files, [], True, []

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/sets/").replace("%20", " ")
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.server.asked.append((path, start))
        data = self.server.files.get(path)
        if not isinstance(data, bytes):
            self.send_error(data or 404)
            return
        if not self.server.ranges:
            start = 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        until = start + self.server.cuts.pop(0) if self.server.cuts else None
        self.wfile.write(data[start:until])
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@contextmanager
def serving(files):
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch):
    """Serve a set of two files, which it knows as the only one."""
    names = {"nets/a.onnx": "deep/a net.onnx", "b.vnnlib": "b.vnnlib"}
    table = [Remote(path, source, len(FILES[source]), hashlib.sha256(FILES[source]).hexdigest()) for path, source in names.items()]
    small = BenchmarkSet("small", "two files", tuple(table), (("nets/a.onnx", "b.vnnlib", 7.0, "unsat"),))
    with serving(dict(FILES)) as found:
        base = f"http://127.0.0.1:{found.server_address[1]}/sets"
        monkeypatch.setattr(fetch, "benchmark_sets", lambda: (base, {"small": small}))
        yield found


def whole(folder):
    """The files of the set are there, and nothing else."""
    assert (folder / "nets" / "a.onnx").read_bytes() == FILES["deep/a net.onnx"]
    assert (folder / "b.vnnlib").read_bytes() == FILES["b.vnnlib"]
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return names == ["b.vnnlib", "expected.csv", "instances.csv", "nets/a.onnx"]


def test_files_arrive_once(server, tmp_path):
    seen = {}
    folder, count = fetch_set("small", tmp_path, told=lambda file, got: seen.setdefault(file.path, []).append(got))
    assert folder == tmp_path / "small" and count == 2 and whole(folder)
    assert [seen[path][-1] for path in ("nets/a.onnx", "b.vnnlib")] == [len(data) for data in FILES.values()]
    assert all(got == sorted(got) for got in seen.values()) and len(seen["nets/a.onnx"]) > 2
    asked = len(server.asked)
    assert fetch_set("small", tmp_path) == (folder, 0)
    assert len(server.asked) == asked == 2


def test_tables_are_those_of_verify(server, tmp_path):
    folder, _ = fetch_set("small", tmp_path)
    [instance] = read_instances(folder / "instances.csv")
    assert (instance.onnx, instance.vnnlib, instance.timeout) == ("nets/a.onnx", "b.vnnlib", 7.0)
    assert read_expected(folder / "expected.csv") == {("nets/a.onnx", "b.vnnlib"): "unsat"}


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_cut_off_is_taken_up_again(server, tmp_path, ranges):
    server.cuts, server.ranges = [1000, 70_000] if ranges else [1000], ranges
    folder, count = fetch_set("small", tmp_path, pauses=(0.0, 0.0))
    assert count == 2 and whole(folder)
    starts = [start for path, start in server.asked if path == "deep/a net.onnx"]
    assert starts == ([0, 1000, 71_000] if ranges else [0, 1000])


def test_a_server_that_always_breaks_off(server, tmp_path):
    server.cuts = [1000, 1000, 1000]
    with pytest.raises(ConnectionError, match=r"a%20net.onnx.*try again"):
        fetch_set("small", tmp_path, pauses=(0.0, 0.0))
    assert not (tmp_path / "small" / "nets" / "a.onnx").exists()
    assert (tmp_path / "small" / "nets" / "a.onnx.part").stat().st_size == 3000
    assert whole(fetch_set("small", tmp_path)[0])
    assert server.asked[3] == ("deep/a net.onnx", 3000)


def test_other_files_are_refused(server, tmp_path):
    wrong = bytearray(FILES["deep/a net.onnx"])
    wrong[5] ^= 1
    server.files["deep/a net.onnx"] = bytes(wrong)
    with pytest.raises(FormatError, match="SHA-256"):
        fetch_set("small", tmp_path, pauses=(0.0,))
    assert [path for path, _ in server.asked] == ["deep/a net.onnx"] * 2
    assert list((tmp_path / "small" / "nets").iterdir()) == []


@pytest.mark.parametrize("change", [b"", b"and more"])
def test_files_of_another_size_are_refused(server, tmp_path, change):
    data = FILES["deep/a net.onnx"]
    server.files["deep/a net.onnx"] = data + change if change else data[:-10]
    with pytest.raises(FormatError if change else ConnectionError):
        fetch_set("small", tmp_path, pauses=(0.0,))
    assert not (tmp_path / "small" / "nets" / "a.onnx").exists()
    server.files["deep/a net.onnx"] = data
    assert whole(fetch_set("small", tmp_path, pauses=(0.0,))[0])


def test_the_rest_of_another_file_does_no_harm(server, tmp_path):
    part = tmp_path / "small" / "nets" / "a.onnx.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 500)
    assert whole(fetch_set("small", tmp_path, pauses=(0.0,))[0])
    part.write_bytes(b"x" * 10**6)
    (tmp_path / "small" / "nets" / "a.onnx").unlink()
    assert whole(fetch_set("small", tmp_path, pauses=(0.0,))[0])


def test_damaged_files_are_replaced(server, tmp_path):
    folder, _ = fetch_set("small", tmp_path)
    (folder / "b.vnnlib").write_bytes(b"damaged")
    assert fetch_set("small", tmp_path)[1] == 1 and whole(folder)


@pytest.mark.parametrize(("code", "attempts"), [(404, 1), (403, 1), (503, 3), (429, 3)])
def test_refusals_name_the_file(server, tmp_path, code, attempts):
    server.files["b.vnnlib"] = code
    with pytest.raises(ConnectionError, match=rf"/sets/b.vnnlib: the server says {code}"):
        fetch_set("small", tmp_path, pauses=(0.0, 0.0))
    assert [path for path, _ in server.asked].count("b.vnnlib") == attempts


def test_nobody_answers(server, tmp_path):
    with Server({}) as gone:
        address = f"http://127.0.0.1:{gone.server_address[1]}"
    with pytest.raises(ConnectionError, match="refused"):
        fetch_set("small", tmp_path, address, pauses=(0.0,))


def run(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["fetch", *map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_command(server, tmp_path):
    shown = run("small", "--to", tmp_path)
    assert "2 files, 2 downloaded" in shown.stdout and shown.stderr == ""
    assert whole(tmp_path / "small")
    assert "0 downloaded, 2 there before" in run("small", "--to", tmp_path).stdout


def test_command_with_another_address(server, tmp_path):
    with serving(dict(FILES)) as copy:
        run("small", "--to", tmp_path, "--base-url", f"http://127.0.0.1:{copy.server_address[1]}/sets/")
        assert len(copy.asked) == 2 and server.asked == []


def test_command_refuses(server, tmp_path):
    assert "unknown set 'large'; choose one of small" in run("large", code=2).stderr
    assert "name a set: small" in run(code=2).stderr
    server.files.clear()
    result = run("small", "--to", tmp_path, code=2)
    assert result.stdout == "" and result.stderr.startswith("error: http://127.0.0.1") and "404" in result.stderr


def test_an_interrupt_keeps_what_arrived(server, tmp_path, monkeypatch):
    original = fetch._continue

    def interrupted(file, url, part, told):
        if file.path == "b.vnnlib":
            raise KeyboardInterrupt
        original(file, url, part, told)

    monkeypatch.setattr(fetch, "_continue", interrupted)
    run("small", "--to", tmp_path, code=130)
    assert (tmp_path / "small" / "nets" / "a.onnx").exists()


def test_list():
    shown = run("--list").stdout
    assert all(name in shown for name in ("acasxu", "oval21", "mnistfc", "cifar10_resnet")) and "stanleybak" in shown


def test_unknown_set(tmp_path):
    with pytest.raises(OptionError, match="choose one of acasxu"):
        fetch_set("mnist", tmp_path)


def test_the_table_is_sound():
    base, sets = benchmark_sets()
    assert base.startswith("https://raw.githubusercontent.com/stanleybak/vnncomp2021/")
    for found in sets.values():
        paths = [file.path for file in found.files]
        assert len(set(paths)) == len(paths) and all(len(file.sha256) == 64 and file.bytes > 0 for file in found.files)
        assert not any(Path(path).is_absolute() or ".." in path for path in paths)
        for onnx, vnnlib, seconds, expected in found.instances:
            assert {onnx, vnnlib} <= set(paths) and seconds > 0 and expected in ("sat", "unsat", "unknown")


def test_the_table_agrees_with_the_shared_files():
    if not SHARED.is_dir():
        pytest.skip(f"the folder {SHARED} is absent")
    _, sets = benchmark_sets()
    with (SHARED / "expected.csv").open(newline="") as stream:
        known = {(row["onnx"], row["vnnlib"]): row["expected"] for row in csv.DictReader(stream)}
    listed = {}
    for name, found in sets.items():
        folder = FOLDERS.get(name, name)
        for file in found.files:
            assert checksum(SHARED / folder / file.path) == file.sha256
            assert (SHARED / folder / file.path).stat().st_size == file.bytes
        listed |= {(f"{folder}/{onnx}", f"{folder}/{vnnlib}"): expected for onnx, vnnlib, _, expected in found.instances}
    assert listed == known
