// Package every does things again and again.
package every

import (
	"context"
	"time"
)

// Period calls do each time that a period has passed, until ctx ends. A call that takes longer than
// a period delays the next one.
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
