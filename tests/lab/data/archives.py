"""Tiny archives in the official formats, and a server on the loopback that has one."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import numpy as np

from ausam_lab.data.sources import Remote


def images(n, channels=3, side=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), dtype=np.uint8)


def cifar10_files(per_file=20):
    """Official names and records: a label byte, then red, green and blue planes."""
    files, x, y = {}, images(6 * per_file), np.arange(6 * per_file) % 10
    for i, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        rows = range(i * per_file, (i + 1) * per_file)
        files[name] = b"".join(bytes([y[r]]) + x[r].tobytes() for r in rows)
    return files, x, y


def tar_gz(files, folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files, folder):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{folder}/{name}", content)
    return buffer.getvalue()


def put(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def md5(content):
    return hashlib.md5(content).hexdigest()


class Server:
    """Serves one file; can break off, or answer with an error."""

    def __init__(self, content):
        self.content, self.asked, self.break_after, self.status = content, 0, None, None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.serve(self)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/files/thing.tar.gz"

    def serve(self, request):
        self.asked += 1
        if self.status:
            request.send_error(self.status)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(self.content)))
        request.end_headers()
        request.wfile.write(self.content[: self.break_after])

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def remote(server, name="thing.tar.gz"):
    return Remote(server.url.replace("thing.tar.gz", name), md5(server.content))
