package redisstore

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/quota"
)

// A loss of state is noticed as follows. Beside the buckets of each tag lies a marker that holds
// when their state was last lost. It is laid when the deployment begins, and is lost together with
// the buckets: the script that grants looks at it when it meets a bucket without a state, and if
// the marker is missing too, everything is lost. So a Redis that comes back empty, or is emptied,
// gives out no bucket in full, and buckets that exist cost nothing more. A server that comes back
// with an older state, or a replica that takes over without the last grants, has the marker; but it
// is another process, which each control plane checks all the time.

func tagged(tag byte, name string) string {
	key := append(make([]byte, 0, len("weir:{00}:")+len(name)), "weir:{"...)
	return string(append(append(hex.AppendEncode(key, []byte{tag}), "}:"...), name...))
}

// lostKey holds when the state of its tag was last lost, in µs, 0 for never. serverKey holds the
// run id of the process that keeps it.
func lostKey(tag byte) string   { return tagged(tag, "lost") }
func serverKey(tag byte) string { return tagged(tag, "server") }

// secretlessLooks is how many looks in a row must find no secret until a control plane that has
// never known it makes a new one: others look three times a second.
const secretlessLooks = 20

// errSecretLost: the store has lost the secret, and another control plane may give it back.
var errSecretLost = errors.New("the secret that keys all hashes is lost in Redis: " +
	"a control plane that knows it gives it back, after five seconds this one makes a new one")

func flag(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

// lay lays the markers that are missing, and returns how many were.
func (s *Store) lay(ctx context.Context, lost quota.Instant) (missing int, err error) {
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
		// Some markers were there. Other errors may follow this one; they leave markers missing.
		err = nil
	}
	return missing, err
}

// lostNow notes in the background that markers are missing: the state beside them is lost.
func (s *Store) lostNow(at quota.Instant) {
	if s.closing.Err() != nil || !s.laying.CompareAndSwap(false, true) {
		return
	}
	s.looks.Go(func() {
		defer s.laying.Store(false)
		ctx, cancel := context.WithTimeout(s.closing, ioTimeout)
		defer cancel()
		missing, err := s.lay(ctx, at)
		if missing > 0 {
			s.log.Warn("Redis has lost the state of buckets: "+
				"those that may have been in use start with less than their burst",
				"parts_lost", missing, "parts", tagCount, "fill_percent", s.fill)
		}
		if err != nil {
			s.log.Debug("a loss of state could not be noted everywhere; the next grant tries again", "error", err)
		}
	})
}

// knownParts returns the servers, which are noted; none if they are not known now.
func (s *Store) knownParts(ctx context.Context) map[string]*part {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime())
	defer cancel()
	parts, err := s.primaries(ctx)
	if err != nil {
		return nil
	}
	servers, named := map[string]bool{}, map[string]bool{leases.StoreName: true}
	for addr := range parts {
		servers[addr], named[addr] = true, true
	}
	s.breakers.Keep(named)
	s.far.keep(servers)
	s.mu.Lock()
	s.servers = servers
	s.mu.Unlock()
	return parts
}

// watch notes by looks at the servers which process keeps the buckets of each tag, and takes a new
// process for a loss of state. The next call retries what fails.
func (s *Store) watch(ctx context.Context, parts map[string]*part, seen map[string]sight) {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime())
	defer cancel()
	for addr, p := range parts {
		if s.wentBack(ctx, p, seen[addr]) {
			s.giveBackOrAgain(ctx, p)
		}
	}
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
				"those that it does not know start with less than their burst",
				"server", addr, "run_id", id, "parts", lost, "fill_percent", s.fill)
		}
	}
}

// noticeAll notes the process that keeps a server's buckets where it has changed, in one round
// trip. A process that got its buckets from one that still runs lost nothing. It returns of how
// many tags state may have been lost.
func (s *Store) noticeAll(ctx context.Context, p *part, id, living string) (lost int) {
	var changed []byte
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
	if s.giveBack(ctx, &part{p.server, changed}) != nil {
		return 0 // The next look tries again.
	}
	answers, _ := p.server.Pipelined(ctx, func(to redis.Pipeliner) error { // Each answer has its error.
		for _, tag := range changed {
			to.Eval(ctx, noticeScript, []string{serverKey(tag), lostKey(tag)}, id, living)
		}
		return nil
	})
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
