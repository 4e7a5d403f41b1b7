"""Tests weir_client with the vectors of the Go package, in ../testdata."""
import asyncio
import json
import pathlib
import unittest

import httpx

import weir_client

VECTORS = pathlib.Path(__file__).parent.parent / "testdata"
NOON = 1795348800  # 2026-11-22 12:00:00 UTC, the beginning of every timeline


def vectors(name):
    return json.loads((VECTORS / name).read_text())


class Time:
    """A clock that only sleeping moves."""

    now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    async def asleep(self, seconds):
        self.now += seconds


class Server(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(self, clock):
        self.clock, self.answers, self.sent = clock, [], []

    def handle_request(self, request):
        if isinstance(request.stream, httpx.SyncByteStream) and b"".join(request.stream) not in (b"", b"body"):
            raise AssertionError("the body differs from the request's")
        return self.answer()

    async def handle_async_request(self, request):
        return self.answer()

    def answer(self):
        self.sent.append(self.clock.now)
        status, headers = self.answers[len(self.sent) - 1]
        return httpx.Response(status, headers=headers)


def prepare(vector):
    clock = Time()
    server = Server(clock)
    transport = weir_client.Transport(server, **vector.get("options", {}))
    transport.clock, transport.wall = lambda: clock.now, lambda: NOON + clock.now
    transport.random, transport.sleep, transport.asleep = lambda: 0.5, clock.sleep, clock.asleep
    return clock, server, transport


def request_of(r, once):
    body = {"again": b"body", "once": once}.get(r.get("body"))
    headers = {"Idempotency-Key": "1"} if r.get("key") else {}
    url = "http://api.example" + r.get("path", "/v1/things")
    return httpx.Request(r.get("method", "GET"), url, headers=headers, content=body)


class Vectors(unittest.TestCase):
    def test_headers(self):
        for vector in vectors("headers.json") + vectors("answers.json"):
            with self.subTest(vector["name"]):
                wait, said = weir_client.read(httpx.Headers(vector["headers"]), NOON)
                want = vector["want"]
                self.assertEqual((wait, [list(p) for p in said]), (want["retry_after"], want["policies"]))

    def check(self, r, server, response):
        self.assertEqual(response.status_code, r["status"])
        self.assertEqual(len(server.sent), len(r["sent"]), server.sent)
        for is_, want in zip(server.sent, r["sent"]):
            self.assertAlmostEqual(is_, want, 3)
        if "retry_after" in r:
            self.assertEqual(response.headers["Retry-After"], str(r["retry_after"]))

    def test_timelines(self):
        for vector in vectors("timelines.json"):
            with self.subTest(vector["name"]):
                clock, server, transport = prepare(vector)
                for r in vector["requests"]:
                    clock.now = max(clock.now, r["at"])
                    server.answers, server.sent = r["answers"], []
                    self.check(r, server, transport.handle_request(request_of(r, iter([b"body"]))))

    def test_timelines_async(self):
        async def once():
            yield b"body"

        async def run(vector):
            clock, server, transport = prepare(vector)
            for r in vector["requests"]:
                clock.now = max(clock.now, r["at"])
                server.answers, server.sent = r["answers"], []
                self.check(r, server, await transport.handle_async_request(request_of(r, once())))

        for vector in vectors("timelines.json"):
            with self.subTest(vector["name"]):
                asyncio.run(run(vector))


class Clients(unittest.TestCase):
    def test_a_failure_is_the_callers_and_blocks_nothing(self):
        clock, server, transport = prepare({})
        server.answers = [[200, {"RateLimit-Policy": '"p";q=3;w=9', "RateLimit": '"p";r=2;t=3'}]]
        with httpx.Client(transport=transport) as client:
            self.assertEqual(client.get("http://api.example/").status_code, 200)
            for _ in range(20):
                with self.assertRaises(IndexError):
                    client.get("http://api.example/")
        self.assertLess(clock.now, 20)

    def test_anything_in_headers_ends(self):
        words = ["", "-1", "NaN", "999999999999999", "0", "1e9", "1795348830", '"p";r=0;t=5', '"p";q=0;w=0',
                 '"p";r=999999999999999;t=0, "p";r=0;t=1', "Sun, 22 Nov 2015 12:00:30 GMT", ",,,", '"', "☃", "x, GMT"]
        names = ["Retry-After", "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-RateLimit-Reset",
                 "X-RateLimit-Limit", "Date"]
        clock, server, transport = prepare({"options": {"max_wait": 3}})
        for i in range(3 * len(words) * len(names)):
            headers = {name: words[(i * (k + 1) + k) % len(words)].encode() for k, name in enumerate(names)}
            server.answers, server.sent = 3 * [[(200, 429, 503)[i % 3], headers]], []
            before = clock.now
            transport.handle_request(request_of({}, None))
            self.assertLessEqual(clock.now - before, 3)


if __name__ == "__main__":
    unittest.main()
