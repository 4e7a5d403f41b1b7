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

// ACL is the smallest set of rights for the Redis user, in the syntax of `ACL SETUSER weir on
// >PASSWORD`. The last line is for a Redis Cluster, and for a database other than 0.
const ACL = "resetchannels ~weir:* -@all +eval +evalsha +info +time +get +getdel +set " +
	"+hget +hgetall +hmget +hset +hdel +hkeys +hscan +zscan " +
	"+zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank +zremrangebyscore +pexpire " +
	"+command +cluster|slots +asking +select"

// The minimum version of Redis, and the required maxmemory-policy.
const (
	leastMajor, leastMinor = 6, 2
	policyThatKeeps        = "noeviction"
)

// UnfitError means that a Redis is refused because it cannot hold the state.
type UnfitError struct{ Server, Cause, Remedy string }

// Error describes the problem and the remedy.
func (e *UnfitError) Error() string {
	return fmt.Sprintf("cannot use Redis: %s %s: %s", e.Server, e.Cause, e.Remedy)
}

// Inspect checks that no server is too old or may evict keys. It logs the result, once all servers
// have answered. The error is an *UnfitError, or reports that a build of another protocol has
// written the store.
func (s *Store) Inspect(ctx context.Context) error {
	// Inspect once, unless a server does not answer.
	s.mu.Lock()
	done := s.inspected
	s.inspected = true
	s.mu.Unlock()
	if done {
		return nil
	}
	// Check the protocol before anything else.
	if refusal, _ := s.readProtocol(ctx); refusal != nil {
		return refusal
	}
	// Check each server.
	err := s.eachPrimary(ctx, func(ctx context.Context, server redis.Cmdable, log *slog.Logger) error {
		text, err := server.Info(ctx).Result()
		if err != nil {
			return err
		}
		return s.checkServer(parseInfo(text), log)
	})
	var unfit *UnfitError
	switch {
	case err == nil:
		return nil
	case redis.HasErrorPrefix(err, "NOPERM"):
		s.log.Warn(fmt.Sprintf("cannot inspect Redis: its user has no right to the command INFO. Redis may be older "+
			"than %d.%d, may evict state that cannot be lost, or may be another process that lacks the latest state; "+
			"allow INFO", leastMajor, leastMinor))
		return nil
	}
	s.mu.Lock()
	s.inspected = false // The next call tries again.
	s.mu.Unlock()
	if errors.As(err, &unfit) {
		return unfit
	}
	return nil
}

// eachPrimary calls a function with the single server, or with each primary of a cluster.
func (s *Store) eachPrimary(ctx context.Context, call func(context.Context, redis.Cmdable, *slog.Logger) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
			return call(ctx, server, s.log.With("server", server.Options().Addr))
		})
	}
	return call(ctx, s.client, s.log)
}

// checkServer returns an error if a server, by its INFO, is too old or may evict keys. With
// MayEvict it only logs that the server may evict keys.
func (s *Store) checkServer(facts map[string]string, log *slog.Logger) error {
	server := "port " + facts["tcp_port"]
	if version := facts["redis_version"]; isTooOld(version) {
		cause := fmt.Sprintf("is Redis %s, which is older than %d.%d", version, leastMajor, leastMinor)
		return &UnfitError{server, cause, "upgrade Redis"}
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
	cause := fmt.Sprintf("may evict state that cannot be lost (maxmemory %s, maxmemory-policy %s)",
		facts["maxmemory_human"], policy)
	return &UnfitError{server, cause, "set maxmemory-policy noeviction, or start with --redis-may-evict"}
}

// parseInfo returns the values of an INFO by name.
func parseInfo(info string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			facts[name] = value
		}
	}
	return facts
}

func isTooOld(version string) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return false // The text is no version.
	}
	minor, err := strconv.Atoi(second)
	return major < leastMajor || major == leastMajor && err == nil && minor < leastMinor
}
