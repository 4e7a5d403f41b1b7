package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// rushUpstream answers after the number of milliseconds in the request, and counts its open
// requests, by the Envoy that the request comes through. A request whose client is about to go away
// does not count: Envoy may know of it before the upstream does.
type rushUpstream struct {
	mu   sync.Mutex
	live map[string]int
	gone map[string]bool
	// came is when each request has arrived.
	came map[string]time.Time
	// by counts the open requests through each Envoy, and mostBy is the largest number so far. most
	// is the largest number of both Envoys together since it was last read.
	by, mostBy [2]int
	most       int
	// dead are the Envoys that have died and are not replaced yet.
	dead [2]bool
}

func (u *rushUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	id := q.Get("id")
	envoy, _ := strconv.Atoi(q.Get("envoy"))
	u.begin(id, envoy)
	defer u.end(id)
	ms, _ := strconv.Atoi(q.Get("ms"))
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
	case <-r.Context().Done():
	}
}

func (u *rushUpstream) begin(id string, envoy int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.live == nil {
		u.live, u.came = map[string]int{}, map[string]time.Time{}
	}
	u.came[id] = time.Now() // Also if its client has just gone: Envoy has admitted it.
	if u.gone[id] || u.dead[envoy] {
		return
	}
	u.live[id] = envoy
	u.by[envoy]++
	u.mostBy[envoy] = max(u.mostBy[envoy], u.by[envoy])
	u.most = max(u.most, len(u.live))
}

func (u *rushUpstream) end(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(id)
}

func (u *rushUpstream) drop(id string) {
	if envoy, is := u.live[id]; is {
		delete(u.live, id)
		u.by[envoy]--
	}
}

// leave notes that the client of a request is about to go away.
func (u *rushUpstream) leave(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(id)
	if u.gone == nil {
		u.gone = map[string]bool{}
	}
	u.gone[id] = true
}

// leaveAll notes that an Envoy has died with all its requests. Its last requests may arrive after
// that. They do not count any more, until the Envoy is replaced.
func (u *rushUpstream) leaveAll(envoy int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dead[envoy] = true
	for id, through := range u.live {
		if through == envoy {
			u.drop(id)
			u.gone[id] = true
		}
	}
}

// replaced notes that a new Envoy has taken the place of an Envoy that died.
func (u *rushUpstream) replaced(envoy int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dead[envoy] = false
}

// peaks returns the largest numbers of requests in hand through each Envoy since it was last
// called.
func (u *rushUpstream) peaks() [2]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	most := u.mostBy
	u.mostBy = u.by
	return most
}

// atMost returns the largest number of requests in hand since it was last called.
func (u *rushUpstream) atMost() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	most := u.most
	u.most = len(u.live)
	return most
}

// arrived returns the time at which a request came to the upstream, if it has.
func (u *rushUpstream) arrived(id string) (at time.Time, has bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, has = u.came[id]
	return at, has
}

// through returns the number of requests in hand through an Envoy, and the largest number so far.
func (u *rushUpstream) through(envoy int) (now, most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.by[envoy], u.mostBy[envoy]
}

// offer is one request of a rush: when it came, how long its client wanted it, and how long it was
// in flight, 0 if it was refused. An admitted request came when the upstream saw it. A refused
// request came in the middle between its client's question and the answer. That is the nearest to
// the Envoy's own time that can be seen, however busy the machine is.
type offer struct {
	at           time.Time
	lasts, lived time.Duration
}

// rushed is the outcome of the requests of a rush. Requests that have not reached the upstream
// count as refused, also if their clients did not wait for the refusal. But requests whose clients
// waited for less than hasty are unseen: they may not have reached an Envoy at all.
type rushed struct {
	admitted, refused, aborted, failed, unseen int
	offers                                     []offer
	ended                                      []ended
}

// ended is a request of a rush whose client has heard its status, or has given up: status 0.
type ended struct {
	id        string
	begin, at time.Time
	// lasts is for how long the client wanted it.
	lasts  time.Duration
	status int
}

// hasty is how long a request may need to the upstream on a busy machine.
const hasty = 20 * time.Millisecond

// String implements fmt.Stringer.
func (c rushed) String() string {
	return fmt.Sprintf("%d admitted, %d of them aborted, %d refused, %d failed, %d unseen",
		c.admitted, c.aborted, c.refused, c.failed, c.unseen)
}

// inUse returns for how long the places of a limit were in use until the last offer came. exact is
// the same for one counter with this number of places that sees each offer at once. There each
// offer is in flight for as long as it really was, or, if it was refused, as long as its client
// wanted. It counts time and not requests: two exact counters admit requests of different lengths,
// and so some percent more or fewer of them.
func (c rushed) inUse(places int) (used, exact time.Duration) {
	if len(c.offers) == 0 {
		return 0, 0
	}
	slices.SortFunc(c.offers, func(a, b offer) int { return a.at.Compare(b.at) })
	last := c.offers[len(c.offers)-1].at
	until := func(o offer, lives time.Duration) time.Duration { return min(lives, last.Sub(o.at)) }
	var ends []time.Time
	for _, o := range c.offers {
		lives := o.lasts
		if o.lived > 0 {
			lives = o.lived
			used += until(o, lives)
		}
		ends = slices.DeleteFunc(ends, func(end time.Time) bool { return !end.After(o.at) })
		if len(ends) < places {
			ends = append(ends, o.at.Add(lives))
			exact += until(o, lives)
		}
	}
	return used, exact
}

func (c *rushed) add(other rushed) {
	c.admitted, c.refused = c.admitted+other.admitted, c.refused+other.refused
	c.aborted, c.failed = c.aborted+other.aborted, c.failed+other.failed
	c.unseen += other.unseen
	c.offers = append(c.offers, other.offers...)
	c.ended = append(c.ended, other.ended...)
}

// rush has clients send requests of 5 ms to 2 s one after the other until the context ends, of
// which they abort a third. A client that is refused comes again soon.
func (u *rushUpstream) rush(ctx context.Context, clients int, url func(client int) (string, int)) (all rushed) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for client := range clients {
		running.Go(func() {
			c := u.client(ctx, client, url)
			mu.Lock()
			defer mu.Unlock()
			all.add(c)
		})
	}
	running.Wait()
	for _, e := range all.ended {
		all.note(u, e)
	}
	return all
}

// client plays one client of a rush.
func (u *rushUpstream) client(ctx context.Context, client int, url func(client int) (string, int)) (c rushed) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r := rand.New(rand.NewPCG(uint64(client), 1))
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%d-%d", client, n)
		lasts := time.Duration(5+r.IntN(30)*r.IntN(70)) * time.Millisecond
		patient := lasts + 10*time.Second
		if r.IntN(3) == 0 {
			patient = lasts / 2
		}
		base, envoy := url(client)
		target := fmt.Sprintf("%s/?ms=%d&id=%s&envoy=%d", base, lasts.Milliseconds(), id, envoy)
		begin := time.Now()
		status := once(ctx, transport, target, patient, func() { u.leave(id) })
		c.ended = append(c.ended, ended{id, begin, time.Now(), min(lasts, patient), status})
		if status != 200 && status != 0 {
			time.Sleep(time.Duration(30+r.IntN(70)) * time.Millisecond)
		}
	}
	return c
}

// note takes in a request that has ended. Only when the rush is over is it known whether one whose
// client gave up has come to the upstream.
func (c *rushed) note(u *rushUpstream, e ended) {
	o := offer{at: e.begin.Add(e.at.Sub(e.begin) / 2), lasts: e.lasts}
	came, has := u.arrived(e.id)
	switch {
	case has:
		c.admitted++
		o.at, o.lived = came, max(e.at.Sub(came), time.Millisecond)
		if e.status == 0 {
			c.aborted++
		}
	case e.status == 0 && e.lasts < hasty:
		c.unseen++
		return
	case e.status == 0:
		// Its client waited for long, so it came at once.
		o.at = e.begin
		c.refused++
	case e.status == 429, e.status == 503:
		c.refused++
	default:
		c.failed++
	}
	c.offers = append(c.offers, o)
}

// once sends one request and returns its status, 0 if the client gave up, which it announces by
// leave. The end of ctx makes it give up as well.
func once(
	ctx context.Context, transport *http.Transport, url string, patient time.Duration, leave func(),
) int {
	timed, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	giveUp := func() {
		leave()
		cancel()
	}
	defer time.AfterFunc(patient, giveUp).Stop()
	defer context.AfterFunc(ctx, giveUp)()
	request, err := http.NewRequestWithContext(timed, "GET", url, nil)
	if err != nil {
		return -1
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		if timed.Err() != nil {
			return 0
		}
		return -1
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}
