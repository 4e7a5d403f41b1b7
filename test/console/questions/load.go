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

// slice is the length of a part of the load: the load ends at the end of a part.
const slice = 5 * time.Second

// loading is a load under way.
type loading struct {
	stop func()
	done chan error
	rate float64
	// sums of the slices
	answered, refused, unsent int
	during                    time.Duration
	slowest                   time.Duration
}

// begin sends requests of the callers of a shop at a constant rate: links are made, one caller far
// too often, and followed.
func begin(ctx context.Context, stack *console.Stack, rate float64) *loading {
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
		l.slowest = max(l.slowest, got.Percentile(0.99))
	}
	return nil
}

// end ends the load and describes its outcome.
func (l *loading) end() (string, error) {
	l.stop()
	if err := <-l.done; err != nil {
		return "", fmt.Errorf("the load: %w", err)
	}
	if l.answered == 0 {
		return "", errors.New("the load: no request was answered")
	}
	seconds := l.during.Seconds()
	return fmt.Sprintf("load for %.0f s: %.0f requests a second offered, %.0f answered (%.0f %% refused), %.1f %% not sent "+
		"in time; 99 %% within %s in the worst %s", seconds, l.rate, float64(l.answered)/seconds,
		100*float64(l.refused)/float64(l.answered), 100*float64(l.unsent)/(l.rate*seconds), l.slowest.Round(100*time.Microsecond), slice), nil
}
