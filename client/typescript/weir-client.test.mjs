// Tests weir-client.ts with the vectors of the Go package, in ../testdata.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pacedFetch, read } from "./weir-client.ts";

const vectors = (name) => JSON.parse(readFileSync(new URL(`../testdata/${name}`, import.meta.url), "utf8"));
const noon = 1795348800; // 2026-11-22 12:00:00 UTC, the beginning of every timeline
const camel = { max_wait: "maxWait", spread: "spread", retries: "retries" };

for (const vector of [...vectors("headers.json"), ...vectors("answers.json")]) {
  test(`headers: ${vector.name}`, () => {
    const { after, policies } = read(new Headers(vector.headers), noon);
    assert.deepEqual(
      [after ?? null, policies.map((p) => [p.name, p.quota, p.left, p.reset])],
      [vector.want.retry_after, vector.want.policies]);
  });
}

// prepare returns a fetch whose server answers as a vector says, and a clock that only sleeping moves.
function prepare(options = {}) {
  const state = { now: 0, sent: [], answers: [] };
  const own = Object.fromEntries(Object.entries(options).map(([name, value]) => [camel[name], value]));
  const fetch = pacedFetch({
    ...own, clock: () => noon + state.now, random: () => 0.5,
    sleep: async (seconds) => { state.now += seconds; },
    fetch: async (request) => {
      assert.ok(["", "body"].includes(await request.text()));
      state.sent.push(state.now);
      if (state.sent.length > state.answers.length) throw new TypeError("fetch failed");
      const [status, headers] = state.answers[state.sent.length - 1];
      return new Response(null, { status, headers });
    },
  });
  return { state, fetch };
}

// init returns the request of a vector. Its body can be read again if r.body is "again".
function init(r) {
  const body = { again: "body", once: new Blob(["body"]).stream() }[r.body];
  return { method: r.method ?? "GET", headers: r.key ? { "Idempotency-Key": "1" } : {}, body, duplex: "half" };
}

for (const vector of vectors("timelines.json")) {
  test(`timeline: ${vector.name}`, async () => {
    const { state, fetch } = prepare(vector.options);
    for (const r of vector.requests) {
      Object.assign(state, { now: Math.max(state.now, r.at), sent: [], answers: r.answers });
      const answer = await fetch("http://api.example" + (r.path ?? "/v1/things"), init(r));
      assert.equal(answer.status, r.status);
      assert.deepEqual(state.sent.map((at) => Math.round(at * 1000)), r.sent.map((at) => Math.round(at * 1000)));
      if (r.retry_after) assert.equal(answer.headers.get("Retry-After"), String(r.retry_after));
    }
  });
}

test("a failure is the caller's and blocks nothing", async () => {
  const { state, fetch } = prepare();
  state.answers = [[200, { "RateLimit-Policy": '"p";q=3;w=9', RateLimit: '"p";r=2;t=3' }]];
  await fetch("http://api.example/");
  for (let i = 0; i < 20; i++) await assert.rejects(fetch("http://api.example/"), TypeError);
  assert.ok(state.now < 20);
});

test("a wait ends with its signal", async () => {
  const fetch = pacedFetch({ fetch: async () => new Response(null, { status: 429, headers: { "Retry-After": "20" } }) });
  await assert.rejects(fetch("http://api.example/", { signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
});

test("anything in headers ends", async () => {
  const words = ["", "-1", "NaN", "999999999999999", "0", "1e9", "1795348830", '"p";r=0;t=5', '"p";q=0;w=0',
    '"p";r=999999999999999;t=0, "p";r=0;t=1', "Sun, 22 Nov 2015 12:00:30 GMT", ",,,", '"', "x, GMT", "Infinity"];
  const names = ["Retry-After", "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Limit", "Date"];
  const { state, fetch } = prepare({ max_wait: 3 });
  for (let i = 0; i < 3 * words.length * names.length; i++) {
    const headers = Object.fromEntries(names.map((name, k) => [name, words[(i * (k + 1) + k) % words.length]]));
    const before = state.now;
    Object.assign(state, { sent: [], answers: Array(3).fill([[200, 429, 503][i % 3], headers]) });
    await fetch("http://api.example/");
    assert.ok(state.now - before <= 3);
  }
});
