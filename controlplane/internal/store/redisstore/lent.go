package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// If a server loses permits of requests in flight, the control planes give them back: each
// remembers its answers for as long as permits last. A server writes in order. So if it still has
// the last answer it has lost nothing, and no permit is in doubt. If it lacks an answer, permits
// are in doubt for leases.GivenBackIn. In that time every control plane notices the loss and
// repeats its claims.

//go:embed scripts/lent.lua
var lentScript string

//go:embed scripts/doubt.lua
var doubtScript string

// lentKey holds the time of the last loss of permits with its tag, in µs, as lostKey does for
// buckets. If it is missing, lostKey is used for both. lookedKey counts the looks at a server.
func lentKey(tag byte) string   { return taggedKey(tag, "lent") }
func lookedKey(tag byte) string { return taggedKey(tag, "looked") }

const (
	// claimsAtOnce is the maximum number of claims in one script, to look for or to repeat.
	claimsAtOnce = 64
	// giveBackAgain is the pause before failed claims are repeated.
	giveBackAgain = 50 * time.Millisecond
)

// looked is the knowledge about a server from looks at it.
type looked struct {
	count    int64 // looks that the server has counted
	owed     bool  // the server lost permits and has not got them back yet
	unmarked bool  // the server has an older state, and its marker could not be set
}

// age returns the time since the store was opened, by which claims are remembered.
func (s *Store) age() quota.Instant { return quota.Instant(s.now().Sub(s.begun).Microseconds()) }

// sight is the result of a look at a server.
type sight struct {
	// count is the number of looks that the server has counted, from all control planes; 0 if it
	// did not answer.
	count  int64
	marked bool   // the marker of lost state is there
	runID  string // the run id of the server's process; empty without the right to ask for it
}

func sightOf(texts []string) (seen sight) {
	if len(texts) == 3 {
		seen.count, _ = strconv.ParseInt(texts[0], 10, 64)
		seen.marked, seen.runID = texts[1] == "1", texts[2]
	}
	return seen
}

// lookAt looks at the server of a part.
func (s *Store) lookAt(ctx context.Context, addr string, p *part) sight {
	begin := s.now()
	texts, err := s.readParts(ctx, p.server, []reading{readLook(p.tags[0])})
	s.far.note(addr, s.now().Sub(begin), err)
	if err != nil {
		return sight{}
	}
	return sightOf(texts[0])
}

// lookAtAll looks at each server. A server that hangs takes at most half the time of a look, and
// none once its breaker is open: the rest of the time is for the other servers.
func (s *Store) lookAtAll(ctx context.Context, parts map[string]*part) map[string]sight {
	ctx, cancel := context.WithTimeout(ctx, s.lookTime()/2)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]sight{}
	var wait errgroup.Group
	for addr, p := range parts {
		wait.Go(func() error {
			found := s.lookAt(ctx, addr, p)
			mu.Lock()
			defer mu.Unlock()
			seen[addr] = found
			return nil
		})
	}
	_ = wait.Wait() // No function returns an error.
	return seen
}

// wentBack reports whether the server of a part has forgotten earlier looks, now or before without
// getting its losses back since.
func (s *Store) wentBack(ctx context.Context, p *part, seen sight) bool {
	if seen.count == 0 {
		return false
	}
	tag := p.tags[0]
	s.mu.Lock()
	before := s.looked[tag]
	s.looked[tag] = looked{seen.count, before.owed, before.unmarked}
	s.mu.Unlock()
	back := seen.count <= before.count
	// A missing count, or a missing marker, is noticed elsewhere.
	if before.unmarked || back && seen.count > 1 && seen.marked {
		marked := s.setBack(ctx, p)
		s.updateLooked(tag, func(l *looked) { l.unmarked = !marked })
	}
	return back || before.owed
}

// updateLooked changes the knowledge about the server with a tag.
func (s *Store) updateLooked(tag byte, change func(*looked)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.looked[tag]
	change(&l)
	s.looked[tag] = l
}

// setBack marks that a server has an older state of its buckets, and reports whether it could set
// the mark.
func (s *Store) setBack(ctx context.Context, p *part) bool {
	now, err := p.server.Time(ctx).Result()
	if err != nil || s.markLoss(ctx, p, lostKey, strconv.FormatInt(now.UnixMicro(), 10)) != nil {
		return false
	}
	s.log.Warn("Redis has gone back to an older state of buckets: "+
		"buckets that it does not know start with less than their burst", "parts", len(p.tags), "fill_percent", s.fill)
	return true
}

// markLoss sets the time of the last loss of state for all tags of a part.
func (s *Store) markLoss(ctx context.Context, p *part, key func(tag byte) string, at string) error {
	_, err := p.server.Pipelined(ctx, func(to redis.Pipeliner) error {
		for _, tag := range p.tags {
			to.Set(ctx, key(tag), at, 0)
		}
		return nil
	})
	return err
}

// giveBack repeats the claims of a part's tags in the background, if the server may have lost
// permits. It marks the permits as in doubt if the server has lost some, or if this control plane
// does not remember enough to know.
func (s *Store) giveBack(ctx context.Context, p *part) error {
	// Find the claims that are still valid, and ask for the latest claims.
	now := s.age()
	claims := s.lent.Claims(now, func(bucket keyhash.Key) bool { return slices.Contains(p.tags, bucketTag(bucket)) })
	known := s.lent.KnownIn(now)
	forgotten := known > leases.GivenBackIn
	if len(claims) == 0 && !forgotten {
		return nil
	}
	latest := leases.Latest(claims, now)
	lost, err := s.findLost(ctx, p, latest)
	if err != nil {
		return err
	}
	// Without an answer about a loss, take the server's present time.
	if len(latest) == 0 || lost == "" && forgotten {
		now, err := p.server.Time(ctx).Result()
		if err != nil {
			return err
		}
		lost = strconv.FormatInt(now.UnixMicro(), 10)
	}
	if lost == "" {
		return nil
	}
	// Mark the doubt first, then repeat the claims.
	if err := s.doubtPermits(ctx, p, lost, known-leases.GivenBackIn); err != nil {
		return err
	}
	s.log.Warn("Redis may have lost permits of requests in flight: "+
		"this control plane gives back the permits that it knows",
		"permits_of", len(claims), "in_doubt_for", time.Duration(known)*time.Microsecond)
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.closing, time.Duration(inflight.TTL)*time.Microsecond)
		defer cancel()
		s.claimAgain(ctx, claims)
	})
	return nil
}

// doubtPermits marks when a part's permits were lost, and that they are in doubt for longer than
// usual by this span. It shortens no doubt that another control plane has marked.
func (s *Store) doubtPermits(ctx context.Context, p *part, lost string, longer quota.Span) error {
	_, err := p.server.Pipelined(ctx, func(to redis.Pipeliner) error {
		for _, tag := range p.tags {
			to.Eval(ctx, doubtScript, []string{lentKey(tag)}, lost, int64(longer), int64(inflight.RenewedIn))
		}
		return nil
	})
	return err
}

// giveBackOrAgain gives permits back to a server with an older state, now or at the next look.
func (s *Store) giveBackOrAgain(ctx context.Context, p *part) {
	err := s.giveBack(ctx, p)
	s.updateLooked(p.tags[0], func(l *looked) { l.owed = err != nil })
}

// findLost returns the time at which a server lacked one of the claims; "" if it has them all.
func (s *Store) findLost(ctx context.Context, p *part, claims []leases.Claim) (lost string, err error) {
	byTag := map[byte][]leases.Claim{}
	for _, c := range claims {
		byTag[bucketTag(c.Bucket)] = append(byTag[bucketTag(c.Bucket)], c)
	}
	answers, err := p.server.Pipelined(ctx, func(to redis.Pipeliner) error {
		for _, of := range byTag {
			for some := range slices.Chunk(of, claimsAtOnce) {
				var keys []string
				var args []any
				for _, c := range some {
					keys = append(keys, permitsKey(c.Bucket))
					args = append(args, nodeField(c.Item.Claim.Node), int64(c.Item.Claim.Seq))
				}
				to.Eval(ctx, lentScript, keys, args...)
			}
		}
		return nil
	})
	for _, a := range answers {
		if text, _ := a.(*redis.Cmd).Text(); text != "" {
			lost = text
		}
	}
	return lost, err
}

// claimAgain sends claims again, in groups of claimsAtOnce. It repeats a group that failed after
// giveBackAgain, until it succeeds or ctx ends.
func (s *Store) claimAgain(ctx context.Context, claims []leases.Claim) {
	// Sort the claims by line: a line for each tag in a cluster, otherwise only the first.
	byLine := map[*gather.Line[*portion]][]leases.Item{}
	for _, c := range claims {
		line := &s.lines[0]
		if s.cluster {
			line = &s.lines[bucketTag(c.Bucket)]
		}
		byLine[line] = append(byLine[line], c.Item)
	}
	for line, items := range byLine {
		for group := range slices.Chunk(items, claimsAtOnce) {
			// Send the group until it succeeds. An error of Do means that there was no call; p.err
			// means that the script ran without an answer.
			for {
				p := s.newPortion(group)
				if line.Do(ctx, p, len(p.keys)) == nil && p.err == nil {
					break
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(giveBackAgain):
				}
			}
		}
	}
}
