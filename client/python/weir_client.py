"""Waits if an API would refuse: httpx.Client(transport=weir_client.Transport()), or AsyncClient.
Copy this file. The Go package client is the same client, and its comments give the reasons."""
import asyncio, email.utils, math, random, re, threading, time, types
import httpx

FOREVER, MAX_HOLD, MARKS, TEXT = 1e9, 3600, 256, r'"(?:[^"\\]|\\.)*"'
IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
ITEM = re.compile(rf'\s*({TEXT}|[A-Za-z*][\w:/.*-]*)'
                  rf'((?:\s*;\s*[a-z*][\w.*-]*(?:=(?:{TEXT}|[^;,"\s]*))?)*)\s*(?:,|\Z)', re.ASCII)
PARAM = re.compile(rf';\s*([a-z*][\w.*-]*)=({TEXT}|[^;,"\s]*)', re.ASCII)
IDENTIFIER = re.compile(r"/(?!v\d+(?=/|$))([^/]*\d[^/]*|[^/]{33,})(?=/|$)")

def number(text):
    return float(text) if re.fullmatch(r"\s*[0-9]{1,15}(\.[0-9]{1,6})?\s*", text) else None
def date(text):
    parsed = email.utils.parsedate_tz(text if text.endswith("GMT") else "")
    return parsed and email.utils.mktime_tz(parsed)
def items(value):
    """Reads a list of items and their numbers. A malformed list has no items."""
    found = {}
    while value and (match := ITEM.match(value)):
        value, params = value[match.end():], [(k, number(v)) for k, v in PARAM.findall(match[2])]
        found.setdefault(match[1].strip('"'), {k: n for k, n in params if n is not None})
    return {} if value else dict(list(found.items())[:16])

def read(headers, now):
    """Reads Retry-After or None, and the policies as (name, quota, left, reset)."""
    field = lambda name: ", ".join(headers.get_list(name)).strip()[:4096]
    server, until = date(field("date")) or now, date(field("retry-after"))
    waits = [number(part) for part in field("retry-after").split(",")]
    wait = max(until - server, 0) if until else None if None in waits else max(waits)
    said, policies = [], items(field("ratelimit-policy"))
    for name, p in items(field("ratelimit")).items():
        policy = policies.get(name, {})
        if "r" in p and (reset := p.get("t", policy.get("w"))) is not None:
            said.append((name, policy.get("q", 0), p["r"] // 1, min(reset, FOREVER)))
    for prefix in ("ratelimit-", "x-ratelimit-", "x-rate-limit-"):
        left, reset = number(field(prefix + "remaining")), number(field(prefix + "reset"))
        if reset is not None and reset >= 1e9:
            reset = max((reset / 1000 if reset >= 1e12 else reset) - server, 0)
        reset = reset if (after := number(field(prefix + "reset-after"))) is None else after
        if not said and left is not None and reset is not None:
            name = field(prefix + "bucket") or field(prefix + "resource")
            quota = number(field(prefix + "limit").split(",")[0]) or 0
            said = [(name, quota, left // 1, min(reset, FOREVER))]
    return None if wait is None else min(wait, FOREVER), said

class Limit:
    """A client's knowledge of one policy. A mark is a level and the instant from which it holds."""
    quota = sent = pending = level = newest = last = span = share = 0
    marks = ()
    def count_request(self, now):  # Counts a request that is sent now.
        self.sent, self.pending, self.last = self.sent + 1, self.pending + 1, now
        return self.sent, self.sent - self.pending + 1
    def trusted_at(self, mark, spread):  # Returns the time from which the client trusts a mark.
        gain = min(max(mark[1] - self.level, 0), self.quota) / self.quota
        return mark[0] + self.share * gain * min(self.span / 16, spread)
    def advance(self, now, spread):  # The marks whose time has come raise the level.
        due = [mark for mark in self.marks if self.trusted_at(mark, spread) <= now]
        self.level = max([self.level] + [level for _, level in due])
        self.marks = [mark for mark in self.marks if mark not in due]
    def learn_answer(self, now, sent, quota, left, reset, refused, share, spread):
        self.quota = quota or max(self.quota, left, 1)
        self.advance(now, spread)
        if sent[0] <= self.newest: return
        taken = max(self.level - left - sent[1], 0)
        marks = [(at, level - taken) for at, level in self.marks]
        self.newest, self.level, self.share = sent[0], left + sent[1], share
        if not refused:
            self.span, marks = max(self.span, reset), marks + [(now + reset, self.quota + sent[1])]
        self.marks = [(now + reset, self.sent + 1)] if refused and not left else marks[-MARKS:]
    def next_wait(self, now, spread):  # Returns the wait before the next request.
        self.advance(now, spread)
        free, wanted = self.level - self.sent, max(self.level, self.sent) + 1
        coming = [m for m in self.marks if m[1] >= wanted] or (free < 1 and self.marks[-1:])
        if not coming or 2 * free >= self.quota:
            return 0.05 if not coming and free < 1 and self.pending else 0
        at = min(coming)[0]
        return (self.last + (at - self.last) / 2 / free if free > 0 else self.trusted_at(min(coming), spread)) - now

class Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """max_wait is the longest total wait of a request, spread the time over which clients refused
    together come back, retries the number of repeats of a refused request; -1 is none. key(request)
    names the caller whose limits a request spends, route(request) requests with equal policies."""
    def __init__(self, transport=None, max_wait=30, spread=5, retries=2, key=None, route=None):
        self.below, self.lock, self.budget, self.known = transport, threading.Lock(), 50, {}
        self.max_wait, self.spread, self.retries = max_wait, max(spread, 0), retries
        self.key = key or (lambda r: r.url.netloc)
        self.route = route or (lambda r: r.method + IDENTIFIER.sub("/*", r.url.path))
        self.clock, self.wall, self.random = time.monotonic, time.time, random.random
        self.sleep, self.asleep = time.sleep, asyncio.sleep
    def find_or_make(self, *name, make=Limit):
        if len(self.known) >= 4096: self.known.clear()
        return self.known.setdefault(name, make())
    def plan(self, request):
        """Yields the seconds to sleep, the request when it is to be sent, and at last the answer."""
        key, name, waited, repeats, own = self.key(request), self.route(request), 0, 0, types.SimpleNamespace(held=0)
        route = self.find_or_make(key, name, "route", make=lambda: types.SimpleNamespace(held=0, limits=()))
        self.budget = min(self.budget + 1, 50)
        again = isinstance(request.stream, httpx.ByteStream) and (
            request.method in IDEMPOTENT or "idempotency-key" in request.headers)
        wait = lambda now: max(route.held - now, own.held - now, *(l.next_wait(now, self.spread) for l in route.limits))
        while True:
            while (pause := wait(self.clock())) > 0 and waited + pause <= self.max_wait:
                waited += min(pause, 1)
                yield min(pause, 1)
            if (held := max(route.held, own.held) - self.clock()) > 0:
                yield httpx.Response(429, headers={"Retry-After": str(math.ceil(held))})
            sent = {limit: limit.count_request(self.clock()) for limit in route.limits}
            try: response = yield request
            finally:
                for limit in sent: limit.pending -= 1
            now, share, (after, said) = self.clock(), self.random(), read(response.headers, self.wall())
            refused = response.status_code == 429 or response.status_code >= 400 and after is not None
            if refused and after is None:
                empty = [reset for _, _, left, reset in said if not left]
                after = max(empty, default=None) if said else 2 ** repeats
            helps = refused and after is not None
            late = share * min(max(after / 10, self.spread), 6 * self.spread) if helps else 0
            if helps: (own if said and all(p[2] for p in said) else route).held = now + min(after, MAX_HOLD) + late
            known = [self.find_or_make(key, policy[0] or name) for policy in said]
            route.limits = list({*route.limits, *known}) if refused or not said else known
            for limit, (_, quota, left, reset) in zip(known, said):
                if limit not in sent:
                    sent[limit], limit.pending = limit.count_request(now), limit.pending - 1
                limit.learn_answer(now, sent[limit], quota, left, reset + late, refused, share, self.spread)
            again = again and helps and repeats < self.retries and self.budget >= 5
            if not again or waited + wait(now) > self.max_wait:
                yield response
            self.budget, repeats = self.budget - 5, repeats + 1
    async def run_plan(self, request, send, sleep, close):  # Sleeps and sends as plan asks.
        plan, response = self.plan(request), None
        while True:
            with self.lock: step = plan.send(response)
            if isinstance(step, httpx.Response): return step
            if response: await close(response)
            response = await (send(request) if step is request else sleep(step))
    def handle_request(self, request):
        self.below = self.below or httpx.HTTPTransport()
        def at_once(call):
            async def coroutine(argument): return call(argument)
            return coroutine
        calls = map(at_once, (self.below.handle_request, self.sleep, httpx.Response.close))
        try: self.run_plan(request, *calls).send(None)
        except StopIteration as end: return end.value
    async def handle_async_request(self, request):
        self.below = self.below or httpx.AsyncHTTPTransport()
        return await self.run_plan(request, self.below.handle_async_request, self.asleep, httpx.Response.aclose)
    def close(self): return self.below and self.below.close()
    async def aclose(self): return self.below and await self.below.aclose()
