package redisstore

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/quota"
)

// Weir notices a loss of state in this way. Beside the buckets of each tag is a marker: the time of
// the last loss of their state. It is laid when the deployment begins, and is lost together with
// the buckets. The grant script reads it when it meets a bucket without a state; if the marker is
// missing too, everything is lost. So a Redis that comes back empty, or was emptied, grants no
// bucket in full, and buckets that exist need no further command. A server that comes back with an
// older state, or a replica that takes over without the last grants, has the marker. But it is
// another process, and each control plane checks the process all the time.

// taggedKey returns a key that is on the same server as the buckets of a tag.
func taggedKey(tag byte, name string) string {
	key := append(make([]byte, 0, len("weir:{00}:")+len(name)), "weir:{"...)
	return string(append(append(hex.AppendEncode(key, []byte{tag}), "}:"...), name...))
}

// lostKey returns the key of a tag's marker: the time of the last loss of its state, in µs; 0 if
// there was no loss.
func lostKey(tag byte) string { return taggedKey(tag, "lost") }

// serverKey returns the key of the run id of the process that keeps the state of a tag.
func serverKey(tag byte) string { return taggedKey(tag, "server") }

// secretlessLooks is the number of looks in a row without a secret after which a control plane that
// has never known it makes a new secret. Control planes look three times a second.
const secretlessLooks = 20

// errSecretLost means that the store has lost the secret, and another control plane may give it
// back.
var errSecretLost = errors.New("the secret that keys all hashes is lost in Redis: " +
	"a control plane that knows the secret gives it back; after five seconds this control plane makes a new secret")

func flagText(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

// layMarkers lays the markers that are missing, and returns their number.
func (s *Store) layMarkers(ctx context.Context, lost quota.Instant) (missing int, err error) {
	laid, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for tag := range byte(tagCount) {
			p.SetArgs(ctx, lostKey(tag), int64(lost), redis.SetArgs{Mode: "NX"})
		}
		for tag := range byte(tagCount) {
			p.SetArgs(ctx, lentKey(tag), int64(lost), redis.SetArgs{Mode: "NX"})
		}
		return nil
	})
	for _, l := range laid[:min(tagCount, len(laid))] {
		if l.Err() == nil {
			missing++
		}
	}
	if errors.Is(err, redis.Nil) {
		// Some markers were there. Other errors may follow this error; they leave markers missing.
		err = nil
	}
	return missing, err
}

// lostNow lays missing markers in the background: the state beside them is lost.
func (s *Store) lostNow(at quota.Instant) {
	if s.closing.Err() != nil || !s.laying.CompareAndSwap(false, true) {
		return
	}
	s.background.Go(func() {
		defer s.laying.Store(false)
		ctx, cancel := context.WithTimeout(s.closing, ioTimeout)
		defer cancel()
		missing, err := s.layMarkers(ctx, at)
		if missing > 0 {
			s.log.Warn("Redis has lost the state of buckets: "+
				"buckets that may have been in use start with less than their burst",
				"parts_lost", missing, "parts", tagCount, "fill_percent", s.fill)
		}
		if err != nil {
			s.log.Debug("cannot mark a loss of state everywhere; the next grant tries again", "error", err)
		}
	})
}

// refreshServers returns the servers that keep the buckets now, by address, with their tags; nil if
// it cannot find them. It remembers their addresses, and forgets the breakers and the distances of
// all other servers.
func (s *Store) refreshServers(ctx context.Context) map[string]*part {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime())
	defer cancel()
	parts, err := s.primaries(ctx)
	if err != nil {
		return nil
	}
	// The store as a whole has a breaker too.
	servers, breakers := map[string]bool{}, map[string]bool{leases.StoreName: true}
	for addr := range parts {
		servers[addr], breakers[addr] = true, true
	}
	s.breakers.Keep(breakers)
	s.far.keep(servers)
	s.mu.Lock()
	s.servers = servers
	s.mu.Unlock()
	return parts
}

// watchProcesses remembers which process keeps the buckets of each tag, and treats a new process as
// a loss of state. The next call retries a failure.
func (s *Store) watchProcesses(ctx context.Context, parts map[string]*part, seen map[string]sight) {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime())
	defer cancel()
	// Give permits back to servers with an older state.
	for addr, p := range parts {
		if s.wentBack(ctx, p, seen[addr]) {
			s.giveBackOrAgain(ctx, p)
		}
	}
	// Compare the processes with the last look.
	var living []string
	for _, of := range seen {
		if of.runID != "" {
			living = append(living, of.runID)
		}
	}
	for addr, p := range parts {
		id := seen[addr].runID
		if id == "" {
			continue
		}
		if lost := s.noticeAll(ctx, p, id, strings.Join(living, " ")); lost > 0 {
			s.log.Warn("another Redis process keeps the state of buckets: "+
				"buckets that it does not know start with less than their burst",
				"server", addr, "run_id", id, "parts", lost, "fill_percent", s.fill)
		}
	}
}

// noticeAll records in one round trip that another process keeps a server's buckets. If it has
// copied them from a process that still runs, nothing was lost. It returns the number of tags whose
// state may have been lost.
func (s *Store) noticeAll(ctx context.Context, p *part, id, living string) (lost int) {
	var changed []byte
	// Find the tags whose process has changed.
	s.mu.Lock()
	for _, tag := range p.tags {
		if s.kept[tag] != id {
			changed = append(changed, tag)
		}
	}
	s.mu.Unlock()
	if len(changed) == 0 {
		return 0
	}
	// Give the permits back first: after the next step the change is no longer visible.
	if s.giveBack(ctx, &part{p.server, changed}) != nil {
		return 0 // The next look tries again.
	}
	answers, _ := p.server.Pipelined(ctx, func(to redis.Pipeliner) error { // Each answer has its own error.
		for _, tag := range changed {
			to.Eval(ctx, noticeScript, []string{serverKey(tag), lostKey(tag)}, id, living)
		}
		return nil
	})
	// Remember the process, and count the losses.
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, answer := range answers {
		n, err := answer.(*redis.Cmd).Int()
		if err == nil {
			s.kept[changed[i]] = id
			lost += n
		}
	}
	return lost
}
