package redisstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
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

// Secret implements push.Secrets. It also lays the markers of a new deployment, and checks whether
// a server has lost state: call it all the time.
func (s *Store) Secret(ctx context.Context, candidate [16]byte) ([16]byte, error) {
	s.watch(ctx)
	for laid := false; ; laid = true {
		secret, ok, err := s.secret(ctx, candidate, laid)
		if err != nil || ok {
			return secret, err
		}
		if _, err := s.lay(ctx, 0); err != nil {
			return secret, err
		}
	}
}

// secretlessLooks is how many looks in a row must find no secret until a control plane that has
// never known it makes a new one: others look five times a second.
const secretlessLooks = 25

// errSecretLost: the store has lost the secret, and another control plane may give it back.
var errSecretLost = errors.New("the secret that keys all hashes is lost in Redis: " +
	"a control plane that knows it gives it back, after five seconds this one makes a new one")

// secret asks for the secret; false if the deployment has no markers yet. If a known secret is
// gone, the store gets it back, and the missing markers mean a loss.
func (s *Store) secret(ctx context.Context, candidate [16]byte, laid bool) (secret [16]byte, ok bool, err error) {
	s.mu.Lock()
	// No other control plane knows it either, if none has given it back for so long.
	given := s.secretless >= secretlessLooks
	args := []any{candidate[:], flag(s.known), flag(laid || given)}
	s.mu.Unlock()
	var reply []string
	err = s.guarded(ctx, keySecret, func() (err error) {
		reply, err = secretOrNew.Run(ctx, s.client, []string{keySecret, keyLaid}, args...).StringSlice()
		return err
	})
	if err != nil || len(reply) == 0 {
		return secret, false, err
	}
	if reply[0] == "" {
		s.mu.Lock()
		s.secretless++
		s.mu.Unlock()
		return secret, false, errSecretLost
	}
	if given && reply[0] == string(candidate[:]) {
		s.log.Error("Redis has lost the secret that keys all hashes, and no control plane knows it: " +
			"it is a new one, and what is stored of consumers and keys is not found any more; restore a backup")
	}
	if len(reply[0]) != len(candidate) {
		return secret, false, fmt.Errorf("%s does not hold a secret of %d bytes", keySecret, len(candidate))
	}
	if err := s.Inspect(ctx); err != nil {
		return secret, false, err
	}
	s.mu.Lock()
	s.known, s.secretless = true, 0
	s.mu.Unlock()
	return keyhash.Key([]byte(reply[0])), true, nil
}

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

// watch notes which process keeps the buckets of each tag, and takes a new process for a loss of
// state. The next call retries what fails.
func (s *Store) watch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime())
	defer cancel()
	parts, err := s.primaries(ctx)
	if err != nil {
		return
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
	for _, addr := range s.goneBack(ctx, parts) {
		s.giveBackOrAgain(ctx, parts[addr])
	}
	ids := s.processes(ctx, parts)
	living := make([]string, 0, len(ids))
	for _, id := range ids {
		living = append(living, id)
	}
	for addr, id := range ids {
		if lost := s.noticeAll(ctx, parts[addr], id, strings.Join(living, " ")); lost > 0 {
			s.log.Warn("another Redis process keeps the state of buckets: "+
				"those that it does not know start with less than their burst",
				"server", addr, "run_id", id, "parts", lost, "fill_percent", s.fill)
		}
	}
}

// processes returns the run ids of the servers that answer.
func (s *Store) processes(ctx context.Context, parts map[string]*part) map[string]string {
	found := make(chan [2]string, len(parts))
	var wait errgroup.Group
	for addr, p := range parts {
		wait.Go(func() error {
			var text string
			err := s.guarded(ctx, lostKey(p.tags[0]), func() (err error) {
				begin := s.now()
				text, err = p.server.Info(ctx, "server").Result()
				if redis.HasErrorPrefix(err, "NOPERM") { // It answers, but not this.
					text, err = "", nil
				}
				s.far.note(addr, s.now().Sub(begin), err)
				return err
			})
			if id := facts(text)["run_id"]; err == nil && id != "" {
				found <- [2]string{addr, id}
			}
			return nil
		})
	}
	_ = wait.Wait() // It has no error.
	close(found)
	ids := map[string]string{}
	for f := range found {
		ids[f[0]] = f[1]
	}
	return ids
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
