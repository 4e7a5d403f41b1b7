package load_test

import (
	"bufio"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/figures/bench/load"
)

// server answers 200 to each request, after before(n) has returned for the n-th; n counts from 1
// over all connections.
func server(t *testing.T, before func(n int64, request string)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					request := in.Text()
					for in.Text() != "" && in.Scan() {
					}
					before(count.Add(1), request)
					if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func requests(paths ...string) (all [][]byte, order []int) {
	for i, path := range paths {
		all, order = append(all, []byte("GET "+path+" HTTP/1.1\r\nhost: a\r\n\r\n")), append(order, i)
	}
	return all, order
}

// The server stands still for 300 ms. With two connections only two requests are sent in that time,
// but all that were due wait: a thousand a second, and each that was due in the first 200 ms of the
// stall for 100 ms at least.
func TestAStallShowsInEveryRequestThatWasDue(t *testing.T) {
	var still sync.RWMutex
	address := server(t, func(n int64, _ string) {
		if n == 200 {
			still.Lock()
			defer still.Unlock()
			time.Sleep(300 * time.Millisecond)
			return
		}
		still.RLock()
		defer still.RUnlock()
	})
	l := load.Load{Address: address, Connections: 2}
	l.Requests, l.Order = requests("/")
	r, err := l.Open(t.Context(), 1000, 1500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered() != 1500 || r.Statuses[200] != 1500 || len(r.Latencies) != 1500 {
		t.Errorf("1500 requests were due; answered %v, timed %d", r.Statuses, len(r.Latencies))
	}
	slow := 0
	for _, latency := range r.Latencies {
		if latency >= 100*time.Millisecond {
			slow++
		}
	}
	// The request that begins the stall may itself arrive late by a moment.
	if slow < 190 {
		t.Errorf("%d requests waited for 100 ms or more, 200 were due in the first 200 ms of a stall of 300 ms", slow)
	}
	if p := r.Percentile(0.99); p < 250*time.Millisecond {
		t.Errorf("the 99th percentile is %v: a fifth of the requests fell into a stall of 300 ms", p)
	}
}

// A server that cannot keep up does not make an open loop last longer than its overtime. Requests
// that were not sent have waited until then.
func TestAnOpenLoopEndsAfterItsOvertime(t *testing.T) {
	address := server(t, func(int64, string) { time.Sleep(10 * time.Millisecond) })
	l := load.Load{Address: address, Connections: 1, Overtime: 100 * time.Millisecond}
	l.Requests, l.Order = requests("/")
	r, err := l.Open(t.Context(), 1000, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered() == 0 || r.Answered() > 31 || r.Answered()+r.Unsent != 200 || len(r.Latencies) != 200 {
		t.Errorf("%d of 200 requests were answered in 300 ms, one in 10 ms, %d were not sent, and %d have waited",
			r.Answered(), r.Unsent, len(r.Latencies))
	}
	if least := r.Percentile(0.5); least < 100*time.Millisecond {
		t.Errorf("half of the requests have waited less than %v, most of them to the end", least)
	}
}

// No request is sent before it is due.
func TestAnOpenLoopIsNeverEarly(t *testing.T) {
	var mu sync.Mutex
	var last time.Time
	address := server(t, func(int64, string) {
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
	})
	l := load.Load{Address: address, Connections: 8}
	l.Requests, l.Order = requests("/")
	begin := time.Now()
	if _, err := l.Open(t.Context(), 500, 400*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	// The 200th is due 199 times 2 ms after the first.
	if took := last.Sub(begin); took < 398*time.Millisecond {
		t.Errorf("the last of 200 requests at 500 a second came after %v", took)
	}
}

// Both loops send the requests in their order, and count every answer.
func TestRequestsComeInTheirOrder(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	address := server(t, func(_ int64, request string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, strings.Fields(request)[1])
	})
	l := load.Load{Address: address, Connections: 1}
	l.Requests, _ = requests("/a", "/b", "/c")
	l.Order = []int{0, 2, 2, 1}
	r, err := l.Open(t.Context(), 100, 60*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ""); got != "/a/c/c/b/a/c" || r.Answered() != 6 {
		t.Errorf("sent %s, answered %d", got, r.Answered())
	}
	seen = nil
	if r, err = l.Closed(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, ""); !strings.HasPrefix(got, "/a/c") || r.Statuses[200] != len(seen) ||
		r.Latencies != nil {
		t.Errorf("sent %d, %.40s…; answered %v", len(seen), got, r.Statuses)
	}
}

func TestABrokenConnectionIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	broken := load.Load{Address: l.Addr().String(), Connections: 2}
	broken.Requests, broken.Order = requests("/")
	if _, err := broken.Closed(t.Context(), time.Second); err == nil {
		t.Error("a closed loop over broken connections says nothing")
	}
	if _, err := broken.Open(t.Context(), 100, time.Second); err == nil {
		t.Error("an open loop over broken connections says nothing")
	}
}

func TestPercentiles(t *testing.T) {
	var r load.Result
	if r.Percentile(0.5) != 0 {
		t.Error("a percentile of nothing")
	}
	for i := range 1000 {
		r.Latencies = append(r.Latencies, time.Duration(i+1))
	}
	for p, want := range map[float64]time.Duration{0: 1, 0.5: 501, 0.99: 991, 0.999: 1000, 1: 1000} {
		if got := r.Percentile(p); got != want {
			t.Errorf("percentile %v of 1 to 1000 is %d, want %d", p, got, want)
		}
	}
}
