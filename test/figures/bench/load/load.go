// Package load sends requests to a proxy with as little effort of its own as it can, in two ways.
// In a closed loop each connection asks again as soon as it is answered: the proxy works as fast as
// it can, and its processor time shows the cost of a request. In an open loop requests are due at a
// constant rate, however slow the proxy is, and each is timed from the instant at which it was due:
// a proxy that stalls shows the stall in every request that should have been sent meanwhile.
package load

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is how long after the end of a load an answer may still come.
const patience = 10 * time.Second

// Load describes the requests and their target.
type Load struct {
	// Address is host:port of the proxy.
	Address string
	// Connections is how many there are; each has one request on its way at most.
	Connections int
	// Requests are complete requests of HTTP/1.1 without a body. The n-th that is sent is
	// Requests[Order[(First+n) % len(Order)]].
	Requests [][]byte
	Order    []int
	First    int
	// Overtime is how long after the end of an open loop requests may still be sent that were due
	// in it; 0 is until all are sent.
	Overtime time.Duration
}

// Result is the outcome of a load.
type Result struct {
	// Statuses counts the answers by status.
	Statuses map[int]int
	// Duration is from the first request to the last answer.
	Duration time.Duration
	// Unsent is how many requests of an open loop were due but not sent, because it ran out of
	// overtime.
	Unsent int
	// Latencies of an open loop, from when a request was due to the end of its answer, in ascending
	// order. The latency of a request that was not sent ends with the load.
	Latencies []time.Duration
}

// Answered returns the number of answers, with any status.
func (r Result) Answered() (n int) {
	for _, count := range r.Statuses {
		n += count
	}
	return n
}

// Percentile returns the latency that a share p of the requests, 0 to 1, did not exceed; 0 if there
// were none.
func (r Result) Percentile(p float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(p*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

func (l Load) request(n int) []byte { return l.Requests[l.Order[(l.First+n)%len(l.Order)]] }

// Closed sends on every connection, each as soon as the last answer is there. It fails if a
// connection does.
func (l Load) Closed(ctx context.Context, during time.Duration) (Result, error) {
	conns, err := l.dial(ctx, during)
	if err != nil {
		return Result{}, err
	}
	defer closeAll(conns)
	begin := time.Now()
	end := begin.Add(during)
	errs := make([]error, len(conns))
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			for n := i; errs[i] == nil && ctx.Err() == nil && time.Now().Before(end); n += len(conns) {
				if _, errs[i] = c.Write(l.request(n)); errs[i] == nil {
					errs[i] = c.receive()
				}
			}
		})
	}
	all.Wait()
	return collect(conns, begin), firstError(ctx, errs)
}

// Open sends rate requests a second, each when it is due or, while every connection waits for an
// answer, as soon as one is free. All that were due are sent, unless there is no time. It fails if
// a connection does.
func (l Load) Open(ctx context.Context, rate float64, during time.Duration) (Result, error) {
	conns, err := l.dial(ctx, during+l.Overtime)
	if err != nil {
		return Result{}, err
	}
	total := int(rate * during.Seconds())
	free, failed := make(chan *conn, len(conns)), make(chan error, len(conns))
	var over atomic.Bool
	var readers sync.WaitGroup
	for _, c := range conns {
		c.latencies = make([]time.Duration, 0, total/len(conns)+1)
		free <- c
		readers.Go(func() {
			for {
				if err := c.receive(); err != nil {
					if !over.Load() {
						failed <- err
					}
					return
				}
				c.latencies = append(c.latencies, time.Since(time.Unix(0, c.due.Load())))
				free <- c
			}
		})
	}
	setSlices(promptly)
	defer setSlices(usually)
	begin := time.Now()
	s := schedule{begin: begin, rate: rate, total: total}
	if l.Overtime > 0 {
		s.end = begin.Add(during + l.Overtime)
	}
	sent, done := 0, make(chan error, 1)
	go func() {
		var err error
		sent, err = l.pace(ctx, s, free, failed)
		done <- err
	}()
	err = <-done
	over.Store(true)
	closeAll(conns)
	readers.Wait()
	result := collect(conns, begin)
	for n := sent; err == nil && n < total; n++ {
		result.Unsent++
		result.Latencies = append(result.Latencies, s.end.Sub(s.due(n)))
	}
	slices.Sort(result.Latencies)
	return result, err
}

// schedule says when requests are due: total from begin on, rate a second. After the end none is
// sent any more, unless that is zero.
type schedule struct {
	begin, end time.Time
	rate       float64
	total      int
}

// due returns the time of the n-th request.
func (s schedule) due(n int) time.Time {
	return s.begin.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
}

// pace sends each request when it is due and then waits until every connection is free again. It
// sleeps by system call on a thread of its own, because Go's timers are a millisecond late when the
// process also waits for connections; the thread ends with the goroutine.
func (l Load) pace(
	ctx context.Context, s schedule, free <-chan *conn, failed <-chan error,
) (sent int, err error) {
	runtime.LockOSThread()
	setTimerSlack(time.Nanosecond)
	take := func() (*conn, error) {
		select {
		case c := <-free:
			return c, nil
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for ; sent < s.total; sent++ {
		due := s.due(sent)
		sleep(time.Until(due))
		c, err := take()
		if err != nil {
			return sent, err
		}
		if !s.end.IsZero() && time.Now().After(s.end) {
			return sent, await(cap(free)-1, take)
		}
		c.due.Store(due.UnixNano())
		if _, err := c.Write(l.request(sent)); err != nil {
			return sent, err
		}
	}
	return sent, await(cap(free), take)
}

// await takes n connections.
func await(n int, take func() (*conn, error)) error {
	for range n {
		if _, err := take(); err != nil {
			return err
		}
	}
	return nil
}

func sleep(d time.Duration) {
	for d > 0 {
		// Signals interrupt it; then it returns the time that is left.
		left, t := syscall.Timespec{}, syscall.NsecToTimespec(int64(d))
		if syscall.Nanosleep(&t, &left) == nil {
			return
		}
		d = time.Duration(left.Nano())
	}
}

// setTimerSlack says how late the kernel may wake the calling thread; without a word it is 50
// microseconds.
func setTimerSlack(d time.Duration) {
	const prSetTimerSlack = 29
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(d), 0)
}

func (l Load) dial(ctx context.Context, during time.Duration) ([]*conn, error) {
	var conns []*conn
	for range l.Connections {
		c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", l.Address)
		if err == nil {
			err = c.SetDeadline(time.Now().Add(during + patience))
		}
		if err != nil {
			closeAll(conns)
			return nil, fmt.Errorf("the load cannot connect: %w", err)
		}
		conns = append(conns, newConn(c))
	}
	return conns, nil
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		c.Close()
	}
}

func collect(conns []*conn, begin time.Time) Result {
	r := Result{Statuses: map[int]int{}, Duration: time.Since(begin)}
	for _, c := range conns {
		for status, n := range c.statuses {
			r.Statuses[status] += n
		}
		r.Latencies = append(r.Latencies, c.latencies...)
	}
	return r
}

func firstError(ctx context.Context, errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
