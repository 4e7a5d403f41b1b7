package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// keyDeployment holds the marks of the deployment that uses the store. They expire deploymentTime
// after the last of its control planes stopped.
const (
	keyDeployment  = "weir:{meta}:deployment"
	deploymentTime = 10 * time.Minute
)

// Deployment reports whether another deployment uses the store: a deployment that shares no mark
// with this deployment. If not, it notes the marks of this deployment.
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
