package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// timeScript asks the server that keeps the policies: a plain command would go to any of a cluster.
var timeScript = redis.NewScript("return redis.call('TIME')")

// Time is the time by the clock of the server that keeps policies, orders and bans.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	reply, err := timeScript.Run(ctx, s.client, []string{keySecret}).StringSlice()
	if err != nil {
		return time.Time{}, err
	}
	if len(reply) != 2 {
		return time.Time{}, fmt.Errorf("TIME has %d values", len(reply))
	}
	seconds, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	micros, err := strconv.ParseInt(reply[1], 10, 64)
	return time.Unix(seconds, micros*1000), err
}
