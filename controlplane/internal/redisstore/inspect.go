package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ACL is the least that a Redis user must be allowed, as `ACL SETUSER weir on >PASSWORD` wants it.
// The second line is for a Redis Cluster, and for any database but 0.
const ACL = "resetchannels ~weir:* -@all +eval +evalsha +info +time +get +getdel +set " +
	"+hget +hgetall +hmget +hset +hdel +hkeys +hscan +zscan " +
	"+zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank +zremrangebyscore +pexpire " +
	"+command +cluster|slots +asking +select"

// The least that the store needs of a Redis.
const (
	leastMajor, leastMinor = 6, 2
	policyThatKeeps        = "noeviction"
)

// EvictsError is why a Redis is refused that may evict what cannot be lost.
type EvictsError struct{ Server, Policy, Memory string }

// Error says what to do.
func (e *EvictsError) Error() string {
	return fmt.Sprintf("cannot use Redis: %s may evict what cannot be lost (maxmemory %s, maxmemory-policy %s): "+
		"set maxmemory-policy noeviction, or start with --redis-may-evict", e.Server, e.Memory, e.Policy)
}

// Inspect looks, until all servers have answered, which are too old or may evict what they hold,
// and logs that once. Its error is an *EvictsError, unless MayEvict, or that a build of another
// protocol has written the store.
func (s *Store) Inspect(ctx context.Context) error {
	s.mu.Lock()
	done := s.inspected
	s.inspected = true
	s.mu.Unlock()
	if done {
		return nil
	}
	if number, err := s.client.Get(ctx, keyLaid).Result(); err == nil {
		if err := s.checkProtocol(number); err != nil {
			return err
		}
	}
	err := s.eachPrimary(ctx, func(ctx context.Context, server redis.Cmdable, log *slog.Logger) error {
		text, err := server.Info(ctx).Result()
		if err != nil {
			return err
		}
		return s.judge(facts(text), log)
	})
	var evicts *EvictsError
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "NOPERM"):
		s.log.Warn("Redis cannot be inspected: its user is not allowed the command INFO. Whether it may evict " +
			"what cannot be lost, or another process has nearly all of its state, is not known")
		return nil
	}
	s.mu.Lock()
	s.inspected = false // The next call tries again.
	s.mu.Unlock()
	if errors.As(err, &evicts) {
		return evicts
	}
	return nil
}

// eachPrimary calls a function for the server, or for all servers of a cluster that take writes.
func (s *Store) eachPrimary(ctx context.Context, call func(context.Context, redis.Cmdable, *slog.Logger) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
			return call(ctx, server, s.log.With("server", server.Options().Addr))
		})
	}
	return call(ctx, s.client, s.log)
}

// judge logs what is wrong with a server by its INFO, and refuses it if it may evict.
func (s *Store) judge(facts map[string]string, log *slog.Logger) error {
	if version := facts["redis_version"]; tooOld(version) {
		log.Warn("Redis is older than 6.2, the oldest that can hold the state: grants will fail", "version", version)
	}
	policy := facts["maxmemory_policy"]
	if facts["maxmemory"] == "0" || policy == "" || policy == policyThatKeeps {
		return nil
	}
	if s.mayEvict {
		log.Warn("Redis may forget state that counts when its memory is full, "+
			"and limits then let through too much: set maxmemory-policy noeviction",
			"maxmemory_policy", policy, "maxmemory", facts["maxmemory"])
		return nil
	}
	return &EvictsError{"port " + facts["tcp_port"], policy, facts["maxmemory_human"]}
}

// facts are the values of an INFO by name.
func facts(info string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			facts[name] = value
		}
	}
	return facts
}

func tooOld(version string) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false // It is no version.
	}
	minor, err := strconv.Atoi(second)
	return major < leastMajor || major == leastMajor && err == nil && minor < leastMinor
}
