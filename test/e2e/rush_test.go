package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// rushUpstream answers after as many milliseconds as a request says, and counts what it has in
// hand. A request whose client is about to go away does not count: Envoy may know of it before the
// upstream does.
type rushUpstream struct {
	mu   sync.Mutex
	live map[string]bool
	gone map[string]bool
	most int
}

func (u *rushUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	u.begin(id)
	defer u.end(id)
	ms, _ := strconv.Atoi(r.URL.Query().Get("ms"))
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
	case <-r.Context().Done():
	}
}

func (u *rushUpstream) begin(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone[id] {
		return
	}
	if u.live == nil {
		u.live = map[string]bool{}
	}
	u.live[id] = true
	u.most = max(u.most, len(u.live))
}

func (u *rushUpstream) end(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.live, id)
}

// leave notes that the client of a request is about to go away.
func (u *rushUpstream) leave(id string) {
	u.end(id)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone == nil {
		u.gone = map[string]bool{}
	}
	u.gone[id] = true
}

// atMost is the largest number of requests in hand so far.
func (u *rushUpstream) atMost() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.most
}

// rushed is what became of the requests of a rush.
type rushed struct{ admitted, refused, aborted, failed int64 }

// String implements fmt.Stringer.
func (c rushed) String() string {
	return fmt.Sprintf("%d admitted, %d of them aborted, %d refused, %d failed", c.admitted, c.aborted, c.refused, c.failed)
}

// rush has clients send requests of 5 ms to 2 s one after the other until the context ends, of
// which they abort a third. A client that is refused comes again after a few milliseconds.
func (u *rushUpstream) rush(ctx context.Context, clients int, url func(client int) string) rushed {
	var admitted, refused, aborted, failed atomic.Int64
	var all sync.WaitGroup
	for client := range clients {
		all.Add(1)
		go func() {
			defer all.Done()
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
				target := fmt.Sprintf("%s/?ms=%d&id=%s", url(client), lasts.Milliseconds(), id)
				switch once(ctx, transport, target, patient, func() { u.leave(id) }) {
				case 200:
					admitted.Add(1)
				case 429:
					refused.Add(1)
					time.Sleep(time.Duration(1+r.IntN(20)) * time.Millisecond)
				case 0:
					admitted.Add(1)
					aborted.Add(1)
				default:
					failed.Add(1)
				}
			}
		}()
	}
	all.Wait()
	return rushed{admitted.Load(), refused.Load(), aborted.Load(), failed.Load()}
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
