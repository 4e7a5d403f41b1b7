// Package every repeats calls periodically.
package every

import (
	"context"
	"time"
)

// Period calls do after each period until ctx ends. A call that takes longer than a period delays
// the next call.
func Period(ctx context.Context, period time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do(ctx)
		}
	}
}
