/** Waits if an API would refuse: const answer = await pacedFetch({maxWait: 10})(url).
 *  Copy this file. The Go package client is the same client, and its comments give the reasons. */
export interface Options {
  maxWait?: number; // the longest total wait of a request: 30 s; less than 0 is none, also below
  spread?: number; // the time over which clients refused together come back: 5 s
  retries?: number; // the number of repeats of a refused request: 2
  key?: (r: Request) => string; // the caller whose limits a request spends: the host
  route?: (r: Request) => string; // requests with equal policies: method and path
  fetch?: (r: Request) => Promise<Response>; // sends a request: the global fetch
  clock?: () => number; // the Unix time
  sleep?: (seconds: number, signal: AbortSignal) => Promise<void>;
  random?: () => number;
}
export interface Policy { name: string; quota: number; left: number; reset: number }
type Mark = { at: number; level: number }; type Sent = { number: number; base: number };
const forever = 1e9, maxHold = 3600, maxMarks = 256;
const text = String.raw`"(?:[^"\\]|\\.)*"`;
const item = new RegExp(String.raw`^\s*(${text}|[A-Za-z*][\w:/.*-]*)` +
  String.raw`((?:\s*;\s*[a-z*][\w.*-]*(?:=(?:${text}|[^;,"\s]*))?)*)\s*(?:,|$)`);
const param = new RegExp(String.raw`;\s*([a-z*][\w.*-]*)=(${text}|[^;,"\s]*)`, "g");
const number = (s: string) => /^\s*[0-9]{1,15}(\.[0-9]{1,6})?\s*$/.test(s) ? Number(s) : undefined;
const date = (s: string) => /^[A-Z][a-z]{2}, .* GMT$/.test(s) && Date.parse(s) / 1000 || undefined;
/** Reads a list of items and their numbers. A malformed list has no items. */
function items(value: string): Map<string, Record<string, number>> {
  const found = new Map<string, Record<string, number>>();
  for (let match; value && (match = item.exec(value)); value = value.slice(match[0].length)) {
    const params: Record<string, number> = {}, name = match[1].replace(/^"|"$/g, "");
    for (const [, k, v] of match[2].matchAll(param)) params[k] = number(v) ?? params[k];
    if (!found.has(name)) found.set(name, params);
  }
  return new Map(value ? [] : [...found].slice(0, 16));
}
/** Reads Retry-After or undefined, and the policies. */
export function read(headers: Headers, now: number): { after?: number; policies: Policy[] } {
  const field = (name: string) => (headers.get(name) ?? "").trim().slice(0, 4096);
  const server = date(field("date")) ?? now, until = date(field("retry-after"));
  const waits = field("retry-after").split(",").map(number);
  let after = waits.includes(undefined) ? undefined : Math.max(...waits as number[]);
  if (until !== undefined) after = Math.max(until - server, 0);
  const policies: Policy[] = [], declared = items(field("ratelimit-policy"));
  for (const [name, p] of items(field("ratelimit"))) {
    const reset = p.t ?? declared.get(name)?.w, quota = declared.get(name)?.q ?? 0;
    if (p.r !== undefined && reset !== undefined)
      policies.push({ name, quota, left: Math.floor(p.r), reset: Math.min(reset, forever) });
  }
  for (const prefix of ["ratelimit-", "x-ratelimit-", "x-rate-limit-"]) {
    let left = number(field(prefix + "remaining")), reset = number(field(prefix + "reset"));
    if (reset !== undefined && reset >= 1e9)
      reset = Math.max((reset >= 1e12 ? reset / 1000 : reset) - server, 0);
    reset = number(field(prefix + "reset-after")) ?? reset;
    if (policies.length || left === undefined || reset === undefined) continue;
    const name = field(prefix + "bucket") || field(prefix + "resource");
    const quota = number(field(prefix + "limit").split(",")[0]) ?? 0;
    policies.push({ name, quota, left: Math.floor(left), reset: Math.min(reset, forever) });
  }
  return { after: after && Math.min(after, forever), policies };
}
/** A client's knowledge of one policy. A mark is a level and the instant from which it holds. */
class Limit {
  quota = 0; sent = 0; pending = 0; level = 0; newest = 0; last = 0; span = 0; share = 0; marks: Mark[] = [];
  countRequest(now: number): Sent { // Counts a request that is sent now.
    this.last = now;
    return { number: ++this.sent, base: this.sent - this.pending++ };
  }
  trustedAt(m: Mark, spread: number) { // Returns the time from which the client trusts a mark.
    const gain = Math.min(Math.max(m.level - this.level, 0), this.quota) / this.quota;
    return m.at + this.share * gain * Math.min(this.span / 16, spread);
  }
  advance(now: number, spread: number) { // The marks whose time has come raise the level.
    const due = this.marks.filter((m) => this.trustedAt(m, spread) <= now);
    this.marks = this.marks.filter((m) => !due.includes(m));
    this.level = Math.max(this.level, ...due.map((m) => m.level));
  }
  learnAnswer(now: number, sent: Sent, p: Policy, late: number, refused: boolean, share: number, spread: number) {
    this.quota = p.quota || Math.max(this.quota, p.left, 1);
    this.advance(now, spread);
    if (sent.number <= this.newest) return;
    const taken = Math.max(this.level - p.left - sent.base, 0), at = now + p.reset + late;
    for (const m of this.marks) m.level -= taken;
    this.newest = sent.number, this.level = p.left + sent.base, this.share = share;
    if (refused && !p.left) this.marks = [{ at, level: this.sent + 1 }];
    if (refused) return;
    this.marks = [...this.marks, { at, level: this.quota + sent.base }].slice(-maxMarks);
    this.span = Math.max(this.span, p.reset);
  }
  nextWait(now: number, spread: number) { // Returns the wait before the next request.
    this.advance(now, spread);
    const free = this.level - this.sent;
    let coming = this.marks.filter((m) => m.level > Math.max(this.level, this.sent));
    if (!coming.length && free < 1) coming = this.marks.slice(-1);
    if (!coming.length) return free < 1 && this.pending ? 0.05 : 0;
    if (2 * free >= this.quota) return 0;
    const next = coming.reduce((a, b) => b.at < a.at ? b : a);
    return (free < 1 ? this.trustedAt(next, spread) : this.last + (next.at - this.last) / 2 / free) - now;
  }
}
const pause = (seconds: number, signal: AbortSignal) => new Promise<void>((resolve, reject) => {
  const stop = () => { clearTimeout(timer); reject(signal.reason); };
  const timer = setTimeout(() => { signal.removeEventListener("abort", stop); resolve(); }, seconds * 1000);
  signal.addEventListener("abort", stop);
  if (signal.aborted) stop();
});
/** Returns a fetch that waits until it may send, and repeats refused requests if that is safe. */
export function pacedFetch(o: Options = {}) {
  const maxWait = o.maxWait ?? 30, spread = Math.max(o.spread ?? 5, 0), sleep = o.sleep ?? pause;
  const clock = o.clock ?? (() => Date.now() / 1000), random = o.random ?? Math.random;
  const identifier = /\/(?!v\d+(?=\/|$))([^/]*\d[^/]*|[^/]{33,})(?=\/|$)/g;
  const routeOf = o.route ?? ((r) => r.method + new URL(r.url).pathname.replace(identifier, "/*"));
  const keyOf = o.key ?? ((r) => new URL(r.url).host), send = o.fetch ?? ((r) => fetch(r));
  const known = new Map<string, any>(), budget = { left: 50 };
  const findOrMake = <T>(name: string, make: () => T): T => {
    if (known.size >= 4096) known.clear();
    return known.get(name) ?? known.set(name, make()).get(name);
  };
  return async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init), key = keyOf(request), name = routeOf(request);
    const route = findOrMake(`route ${key} ${name}`, () => ({ held: 0, limits: [] as Limit[] })), own = { held: 0 };
    const streamed = init?.body instanceof ReadableStream || input instanceof Request && input.body;
    const again = !streamed && (/^(GET|HEAD|OPTIONS|TRACE|PUT|DELETE)$/.test(request.method)
      || request.headers.has("idempotency-key"));
    const wait = (now: number) =>
      Math.max(route.held - now, own.held - now, ...route.limits.map((l) => l.nextWait(now, spread)));
    budget.left = Math.min(budget.left + 1, 50);
    for (let waited = 0, repeats = 0; ; repeats++, budget.left -= 5) {
      for (let w; (w = wait(clock())) > 0 && waited + w <= maxWait; waited += Math.min(w, 1))
        await sleep(Math.min(w, 1), request.signal);
      const held = Math.ceil(Math.max(route.held, own.held) - clock());
      if (held > 0) return new Response(null, { status: 429, headers: { "Retry-After": String(held) } });
      const sent = new Map(route.limits.map((l) => [l, l.countRequest(clock())]));
      const answer = await send(request.clone()).finally(() => sent.forEach((_, l) => l.pending--));
      const now = clock(), share = random(), said = read(answer.headers, now);
      const refused = answer.status === 429 || answer.status >= 400 && said.after !== undefined;
      const empty = said.policies.filter((p) => !p.left).map((p) => p.reset);
      const after = !refused ? undefined : said.after ?? (empty.length ? Math.max(...empty)
        : said.policies.length ? undefined : 2 ** repeats);
      const late = after === undefined ? 0 : share * Math.min(Math.max(after / 10, spread), 6 * spread);
      const whose = said.policies.length && !empty.length ? own : route; // Tokens are left, but too few.
      if (after !== undefined) whose.held = now + Math.min(after, maxHold) + late;
      const limits = said.policies.map((p) => findOrMake(`policy ${key} ${p.name || name}`, () => new Limit()));
      if (!refused && limits.length) route.limits = [];
      limits.forEach((limit, i) => {
        if (!route.limits.includes(limit)) route.limits.push(limit);
        if (!sent.has(limit)) { sent.set(limit, limit.countRequest(now)); limit.pending--; }
        limit.learnAnswer(now, sent.get(limit)!, said.policies[i], late, refused, share, spread);
      });
      const enough = after === undefined || !again || repeats >= (o.retries ?? 2) || budget.left < 5;
      if (enough || waited + wait(now) > maxWait) return answer; else await answer.body?.cancel();
    }
  };
}
