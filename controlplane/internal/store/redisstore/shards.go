package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

// errAway means that a server has not answered lately, and is not called until it answers a check.
var errAway = errors.New("a server of the Redis Cluster is not called, because it has not answered lately")

// leastLook is the shortest time limit of a background check, for a server that is near.
const leastLook = 100 * time.Millisecond

// guarded makes a call to the cluster's server that keeps a key. If a server does not answer, a few
// calls wait in vain, and calls to the other servers lose nothing. A background check, for which no
// request waits, finds out whether it is back. A single server is not guarded here: the service of
// leases guards it.
func (s *Store) guarded(ctx context.Context, key string, call func() error) error {
	server, err := s.findServer(ctx, key)
	if err != nil {
		return err
	}
	err = call()
	s.reportCall(ctx, server, err)
	return err
}

// findServer finds the server of a key. The error is errAway if the breaker of the server is open.
// Without an error, call reportCall after the call to the server. A single server has no name and
// no breaker.
func (s *Store) findServer(ctx context.Context, key string) (server string, err error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return "", nil
	}
	primary, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return "", err
	}
	server = primary.Options().Addr
	if !s.breakers.Closed(server) {
		s.probeServer(server, primary, key)
		return server, errAway
	}
	return server, nil
}

// reportCall reports the outcome of a call to the breaker of the server.
func (s *Store) reportCall(ctx context.Context, server string, err error) {
	switch {
	case server == "" || access.IsForPeople(ctx): // A wait for people's connections is no evidence about the server.
	case errors.Is(ctx.Err(), context.Canceled): // A caller that went away is no evidence about the server.
	case err == nil || errors.Is(err, redis.Nil):
		s.breakers.Report(server, nil)
	case isAnswer(err):
		s.breakers.Refused(server)
	default:
		s.breakers.Report(server, err)
	}
}

// isAnswer reports whether an error is a quick answer of a working server.
func isAnswer(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	for _, down := range []string{"CLUSTERDOWN", "LOADING", "MASTERDOWN", "BUSY"} {
		if redis.HasErrorPrefix(err, down) {
			return false
		}
	}
	return true
}

// probeServer checks in the background whether a server is back, unless the breaker still waits.
func (s *Store) probeServer(server string, primary *redis.Client, key string) {
	if s.closing.Err() != nil || !s.breakers.Allow(server) {
		return
	}
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.closing, s.lookTime())
		defer cancel()
		err := primary.Get(ctx, key).Err()
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "WRONGTYPE") {
			err = nil
		}
		if s.closing.Err() == nil {
			s.breakers.Report(server, err)
		}
	})
}

// primaries returns the primaries of a cluster by their addresses, each with its tags; or the
// single server.
func (s *Store) primaries(ctx context.Context) (map[string]*part, error) {
	parts := map[string]*part{}
	cluster, ok := s.client.(*redis.ClusterClient)
	for tag := range byte(tagCount) {
		server, addr := redis.Cmdable(s.client), ""
		if ok {
			primary, err := cluster.MasterForKey(ctx, lostKey(tag))
			if err != nil {
				return nil, err
			}
			server, addr = primary, primary.Options().Addr
		}
		if parts[addr] == nil {
			parts[addr] = &part{server: server}
		}
		parts[addr].tags = append(parts[addr].tags, tag)
	}
	return parts, nil
}

// part is a server and the tags of the buckets that it keeps.
type part struct {
	server redis.Cmdable
	tags   []byte
}

// allAway reports whether no known server answers.
func (s *Store) allAway() bool {
	s.mu.Lock()
	servers := s.servers
	s.mu.Unlock()
	for server := range servers {
		if s.breakers.Closed(server) {
			return false
		}
	}
	return len(servers) > 0
}

// once is a command that is not sent again if it got no answer, since it may have run.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// runOnce runs a script and never sends it again after a failure, which the client of a cluster
// would do.
func (s *Store) runOnce(
	ctx context.Context, script *redis.Script, source string, keys []string, args []any,
) *redis.Cmd {
	command := make([]any, 0, 3+len(keys)+len(args))
	command = append(command, "evalsha", script.Hash(), len(keys))
	for _, key := range keys {
		command = append(command, key)
	}
	command = append(command, args...)
	for {
		c := redis.NewCmd(ctx, command...)
		c.SetFirstKeyPos(3)
		_ = s.client.Process(ctx, once{c}) // The command has the error.
		if command[0] != "evalsha" || !redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			return c
		}
		command[0], command[1] = "eval", source
	}
}
