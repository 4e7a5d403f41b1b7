package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// errAway: a server has not answered lately, and is left alone until it does.
var errAway = errors.New("a server of the Redis Cluster is left alone, because it has not answered lately")

// lookTime is how long a look at a server may take that no request waits for.
const lookTime = 100 * time.Millisecond

// guarded makes a call that needs one server of a cluster alone: that of a key. A server that does
// not answer costs a few calls their patience and the rest nothing. Whether it is back is found out
// by a look of its own that no request waits for. One server that is no cluster is not guarded
// here: who asks for grants does that.
func (s *Store) guarded(ctx context.Context, key string, call func() error) error {
	server, err := s.enter(ctx, key)
	if err != nil {
		return err
	}
	err = call()
	s.leave(ctx, server, err)
	return err
}

// enter finds the server of a key, and reports whether a call may be made to it; if so, leave must
// be called at its end.
func (s *Store) enter(ctx context.Context, key string) (server string, err error) {
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
		s.look(server, primary, key)
		return server, errAway
	}
	return server, nil
}

// leave counts the end of a call to a server.
func (s *Store) leave(ctx context.Context, server string, err error) {
	switch {
	case server == "":
	case errors.Is(ctx.Err(), context.Canceled): // A caller that went away says nothing about the server.
	case err == nil || errors.Is(err, redis.Nil):
		s.breakers.Report(server, nil)
	case answered(err):
		s.breakers.Refused(server)
	default:
		s.breakers.Report(server, err)
	}
}

// answered reports whether an error is the answer of a server that works: such an error costs no
// time.
func answered(err error) bool {
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

// look finds out in the background whether a server is back, if it is time to.
func (s *Store) look(server string, primary *redis.Client, key string) {
	if s.closing.Err() != nil || !s.breakers.Allow(server) {
		return
	}
	s.looks.Go(func() {
		ctx, cancel := context.WithTimeout(s.closing, lookTime)
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

// primaries are the servers of a cluster that are written to, by address, each with a key of its
// own; or the one server.
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

// once is a command that is not sent again when it got no answer: it may have been run.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// runOnce runs a script without ever sending it again after a failure, which a cluster's client
// does otherwise.
func (s *Store) runOnce(ctx context.Context, script *redis.Script, source string, keys []string, args []any) *redis.Cmd {
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
