package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	console "github.com/weir-proxy/weir/test/console"
	"github.com/weir-proxy/weir/test/figures/bench/load"
)

// slice is the length of a part of the load. The load ends at the end of a slice.
const slice = 5 * time.Second

// loading is a load under way.
type loading struct {
	stop func()
	done chan error
	rate float64
	// answered, refused, unsent and during are sums over all slices. worstP99 is the largest 99th
	// percentile of a slice.
	answered, refused, unsent int
	during, worstP99          time.Duration
}

// beginLoad sends requests of a shop's callers at a constant rate. They make and follow links; one
// caller sends far more requests than its limit allows.
func beginLoad(ctx context.Context, stack *console.Stack, rate float64) *loading {
	ctx, stop := context.WithCancel(ctx)
	l := &loading{stop: stop, done: make(chan error, 1), rate: rate}
	of := load.Load{Address: strings.TrimPrefix(stack.Envoy, "http://"), Connections: 64, Overtime: 100 * time.Millisecond}
	for i := range 240 {
		key, line := "alice", "POST /shorten"
		if i%4 == 0 {
			key = fmt.Sprint(i % 60)
		}
		if i%3 == 0 {
			line = "GET /abc"
		}
		of.Requests = append(of.Requests, []byte(line+" HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\nx-api-key: key-of-"+key+"\r\n\r\n"))
		of.Order = append(of.Order, i)
	}
	go func() { l.done <- l.run(ctx, of) }()
	return l
}

// run sends the load slice by slice until ctx ends.
func (l *loading) run(ctx context.Context, of load.Load) error {
	for ctx.Err() == nil {
		got, err := of.Open(context.WithoutCancel(ctx), l.rate, slice)
		if err != nil {
			return err
		}
		l.answered += got.Answered()
		l.refused += got.Statuses[429]
		l.unsent += got.Unsent
		l.during += slice
		l.worstP99 = max(l.worstP99, got.Percentile(0.99))
	}
	return nil
}

// endLoad stops the load, waits for its last slice, and describes the outcome.
func (l *loading) endLoad() (string, error) {
	l.stop()
	if err := <-l.done; err != nil {
		return "", fmt.Errorf("the load: %w", err)
	}
	if l.answered == 0 {
		return "", errors.New("the load: no request was answered")
	}
	seconds := l.during.Seconds()
	return fmt.Sprintf("load for %.0f s: %.0f requests a second offered, %.0f answered (%.0f %% refused), %.1f %% not sent "+
		"in time; in the worst slice of %s 99 %% were answered within %s", seconds, l.rate, float64(l.answered)/seconds,
		100*float64(l.refused)/float64(l.answered), 100*float64(l.unsent)/(l.rate*seconds), slice,
		l.worstP99.Round(100*time.Microsecond)), nil
}
