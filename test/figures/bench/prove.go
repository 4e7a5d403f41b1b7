package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// counts are Envoy's counters: proof of the contestant's proof, ladder of decisions of Weir's
// failure ladder.
type counts struct{ calls, proof, ladder int }

func (w *world) count(ctx context.Context, c contestant) (n counts, err error) {
	n.proof, err = w.counter(ctx, c.proof)
	if err != nil {
		return n, err
	}
	n.calls, err = w.counter(ctx, map[part]string{
		weir: `cluster\.weir\.upstream_rq_total`, quotas: `cluster\.weir-quotas\.upstream_rq_total`,
		global: `cluster\.ratelimit\.upstream_rq_total`,
	}[c.part])
	if err != nil || c.part != weir {
		return n, err
	}
	n.ladder, err = w.counter(ctx, ladder)
	return n, err
}

// counter sums Envoy's counters and gauges whose names match. A counter that has never counted is
// missing and adds 0.
func (w *world) counter(ctx context.Context, names string) (sum int, err error) {
	if names == "" {
		return 0, nil
	}
	content, err := w.envoy.Admin(ctx, "/stats?filter="+url.QueryEscape("^"+names+"$"))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Fields(strings.ReplaceAll(string(content), ": ", ":")) {
		_, value, _ := strings.Cut(line, ":")
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("counter %q of Envoy: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

// prove waits until the contestant's proof has grown by n: Weir's filter reports with its tick. The
// empty filter and Envoy's quota filter count nothing, so there is only proof that they run.
func (w *world) prove(ctx context.Context, c contestant, before, n int) error {
	if c.proof == "" {
		return nil
	}
	if c.part == emptyWasm || c.part == quotas {
		before, n = 0, 1
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return stack.Await(ctx, "proof that the filter worked", func(ctx context.Context) error {
		now, err := w.counter(ctx, c.proof)
		if err == nil && now-before < n {
			err = fmt.Errorf("%s grew by %d, not by %d", c.proof, now-before, n)
		}
		return err
	})
}
