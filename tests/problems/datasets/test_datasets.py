"""Downloads of data sets, from a server on this machine."""

import csv
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from blocklp.errors import FormatError, OptionError
from blocklp.problems.datasets import DataSet, Remote, catalogue, data_folder, data_sets, fetch, located
from blocklp.problems.datasets.catalogue import chosen
from blocklp.problems.verification.batch import read_expected, read_instances

from ..command_line import running

pytest.importorskip("pooch", reason="pooch is not installed")

SHARED = Path(__file__).parents[4] / "shared" / "data"
FILES = {"deep/a net.onnx": bytes(range(256)) * 700, "b.vnnlib": b"(assert (>= Y_0 0.0))\n"}


class Server(ThreadingHTTPServer):
    """Serves files; ``cuts`` says after how many bytes each further answer breaks off."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.asked = files, [], []

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/sets/").replace("%20", " ")
        self.server.asked.append(path)
        data = self.server.files.get(path)
        if not isinstance(data, bytes):
            self.send_error(data or 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: self.server.cuts.pop(0)] if self.server.cuts else data)
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
    """Serve a set of two files, which is the only one known."""
    with serving(dict(FILES)) as found:
        names = {"small/nets/a.onnx": "deep/a net.onnx", "small/b.vnnlib": "b.vnnlib"}
        base = f"http://127.0.0.1:{found.server_address[1]}/sets/"
        table = [
            Remote(path, base + source.replace(" ", "%20"), len(FILES[source]), hashlib.sha256(FILES[source]).hexdigest())
            for path, source in names.items()
        ]
        small = DataSet("small", "two files", {"a/b": "MIT"}, tuple(table), (("nets/a.onnx", "b.vnnlib", 7.0, "unsat"),), {})
        monkeypatch.setattr(catalogue, "data_sets", lambda: {"small": small})
        yield found


def whole(folder):
    """The files of the set are there, and nothing else."""
    assert (folder / "nets" / "a.onnx").read_bytes() == FILES["deep/a net.onnx"]
    assert (folder / "b.vnnlib").read_bytes() == FILES["b.vnnlib"]
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return names == ["b.vnnlib", "expected.csv", "instances.csv", "nets/a.onnx"]


def test_files_arrive_once(server, tmp_path):
    seen = {}
    folder, count = fetch("small", tmp_path, told=lambda file, got: seen.setdefault(file.path, []).append(got))
    assert folder == tmp_path / "small" and count == 2 and whole(folder)
    assert [seen[path][-1] for path in ("small/nets/a.onnx", "small/b.vnnlib")] == [len(data) for data in FILES.values()]
    assert all(got == sorted(got) for got in seen.values()) and len(seen["small/nets/a.onnx"]) > 2
    assert fetch("small", tmp_path) == (folder, 0) and len(server.asked) == 2


def test_tables_are_those_of_verify(server, tmp_path):
    folder, _ = fetch("small", tmp_path)
    [instance] = read_instances(folder / "instances.csv")
    assert (instance.onnx, instance.vnnlib, instance.timeout) == ("nets/a.onnx", "b.vnnlib", 7.0)
    assert read_expected(folder / "expected.csv") == {("nets/a.onnx", "b.vnnlib"): "unsat"}


def test_a_folder_of_a_set_alone(server, tmp_path):
    folder, count = fetch("small/nets", tmp_path)
    assert folder == tmp_path / "small" / "nets" and count == 1
    assert [path.name for path in folder.iterdir()] == ["a.onnx"]


def test_what_breaks_off_is_fetched_again(server, tmp_path):
    server.cuts = [1000]
    folder, count = fetch("small", tmp_path, attempts=1)
    assert count == 2 and whole(folder) and server.asked.count("deep/a net.onnx") == 2
    server.cuts = [1000]
    (folder / "nets" / "a.onnx").unlink()
    with pytest.raises(ConnectionError, match=r"a%20net.onnx"):
        fetch("small", tmp_path, attempts=0)
    assert not list((folder / "nets").iterdir())
    assert whole(fetch("small", tmp_path)[0])


@pytest.mark.parametrize("change", ["flipped", "longer", "shorter"])
def test_other_files_are_refused(server, tmp_path, change):
    data = bytearray(FILES["deep/a net.onnx"])
    data[5] ^= change == "flipped"
    server.files["deep/a net.onnx"] = (
        bytes(data) + b"more" if change == "longer" else bytes(data)[: -10 if change == "shorter" else None]
    )
    with pytest.raises(FormatError, match="SHA-256"):
        fetch("small", tmp_path, attempts=0)
    assert not list((tmp_path / "small" / "nets").iterdir())


def test_damaged_files_are_replaced(server, tmp_path):
    folder, _ = fetch("small", tmp_path)
    (folder / "b.vnnlib").write_bytes(b"damaged")
    assert fetch("small", tmp_path)[1] == 1 and whole(folder)


def test_refusals_name_the_file(server, tmp_path):
    server.files["b.vnnlib"] = 403
    with pytest.raises(ConnectionError, match=r"/sets/b.vnnlib: the server says 403.*--mirror"):
        fetch("small", tmp_path, attempts=0)


def test_nobody_answers(server, tmp_path):
    with Server({}) as gone:
        address = f"http://127.0.0.1:{gone.server_address[1]}"
    with pytest.raises(ConnectionError, match="refused"):
        fetch("small", tmp_path, address, attempts=0)


def run(*arguments, code=0):
    return running.run("data", *arguments, code=code)


def test_command(server, tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLP_DATA", str(tmp_path / "all"))
    shown = run("fetch", "small")
    assert "2 files, 2 downloaded" in shown.stdout and shown.stderr == ""
    assert whole(tmp_path / "all" / "small") and located("small/b.vnnlib").read_bytes() == FILES["b.vnnlib"]
    assert "0 downloaded, 2 there before" in run("fetch", "small").stdout
    with serving({"small/b.vnnlib": FILES["b.vnnlib"], "small/nets/a.onnx": FILES["deep/a net.onnx"]}) as copy:
        run("fetch", "small", "--to", tmp_path / "copy", "--mirror", f"http://127.0.0.1:{copy.server_address[1]}/sets")
        assert whole(tmp_path / "copy" / "small") and len(copy.asked) == len(server.asked) == 2


def test_command_refuses(server, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert "no data set 'large'; choose one of small" in run("fetch", "large", code=2).stderr
    assert "has no folder 'small/net'; choose one of small, small/nets" in run("fetch", "small/net", code=2).stderr
    assert "begins with http://" in run("fetch", "small", "--to", tmp_path, "--mirror", "file:///sets", code=2).stderr
    server.files.clear()
    result = run("fetch", "small", "--to", tmp_path, "--mirror", "http://127.0.0.1:9/none", code=2)
    assert result.stdout == "" and result.stderr.startswith("error: http://127.0.0.1:9/none/small/")


def test_list(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLP_DATA", str(tmp_path))
    shown = run("list").stdout
    assert all(name in shown for name in (*data_sets(), "verification/oval21", "github.com/stanleybak/vnncomp2021", str(tmp_path)))
    found = json.loads(run("list", "--json").stdout)
    assert found["folder"] == str(tmp_path) and {row["name"]: row["present"] for row in found["sets"]} == dict.fromkeys(
        data_sets(), 0
    )


def test_list_has_checksums_of_files(server):
    sources = {"small/nets/a.onnx": "deep/a net.onnx", "small/b.vnnlib": "b.vnnlib"}
    known = [(hashlib.sha256(FILES[source]).hexdigest(), path) for path, source in sources.items()]
    assert [tuple(line.split("  ")) for line in run("list", "small").stdout.splitlines()] == known
    (row,) = json.loads(run("list", "small/nets", "--json").stdout)["sets"]
    assert [(file["sha256"], file["path"]) for file in row["contents"]] == known[:1] and row["files"] == 1
    assert "choose one of small" in run("list", "large", code=2).stderr


def test_what_is_missing_says_what_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLP_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(FileNotFoundError, match="blocklp data fetch qpbo"):
        located("qpbo/maxcut/G1.txt")
    monkeypatch.delenv("BLOCKLP_DATA")
    assert data_folder() == Path.home() / ".cache" / "blocklp" / "data"
    with pytest.raises(OptionError, match="choose one of densecrf, lp, qpbo, verification"):
        chosen("mnist")


def test_tables_are_sound():
    for found in data_sets().values():
        paths = [file.path for file in found.files]
        assert len(set(paths)) == len(paths) and all(len(file.sha256) == 64 and file.bytes > 0 for file in found.files)
        assert all(path.startswith(f"{found.name}/") and ".." not in path for path in paths)
        assert all(file.url.startswith("https://raw.githubusercontent.com/") for file in found.files)
        inside = {path.removeprefix(f"{found.name}/") for path in paths}
        assert set(found.energies) <= inside and all(found.licences.values())
        for onnx, vnnlib, seconds, expected in found.instances:
            assert {onnx, vnnlib} <= inside and seconds > 0 and expected in ("sat", "unsat", "unknown")
    part = chosen("verification/oval21")
    assert len(part.instances) == 24 and all(row[0].startswith("nets/") for row in part.instances)
    assert list(part.licences) == ["stanleybak/vnncomp2021"]
    assert chosen("qpbo/maxcut").energies["G1.txt"] == -11624  # the best cut that is published


def test_tables_agree_with_files_that_are_here():
    if not SHARED.is_dir():
        pytest.skip(f"the folder {SHARED} is absent")
    checked = 0
    for found in data_sets().values():
        for file in found.files:
            if (path := SHARED / file.path).exists():
                assert path.stat().st_size == file.bytes and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
                checked += 1
    assert checked > 280
    with (SHARED / "verification" / "expected.csv").open(newline="") as stream:
        known = {(row["onnx"], row["vnnlib"]): row["expected"] for row in csv.DictReader(stream)}
    assert {row[:2]: row[3] for row in data_sets()["verification"].instances} == known
