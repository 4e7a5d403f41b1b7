package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// keyDeployment holds the marks of the deployment whose keys these are, for as long as one of its
// control planes runs, and a little longer.
const (
	keyDeployment  = "weir:{meta}:deployment"
	deploymentTime = 10 * time.Minute
)

// Deployment notes that a deployment with these marks uses the store, and reports whether another
// one does: one that has no mark in common. Then nothing is noted.
func (s *Store) Deployment(ctx context.Context, marks []string) (another bool, err error) {
	held, err := s.client.Get(ctx, keyDeployment).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, err
	}
	there := strings.Fields(held)
	mine := func(mark string) bool { return slices.Contains(marks, mark) }
	if len(there) > 0 && !slices.ContainsFunc(there, mine) {
		return true, nil
	}
	return false, s.client.Set(ctx, keyDeployment, strings.Join(marks, " "), deploymentTime).Err()
}
