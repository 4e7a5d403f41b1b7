package decisions

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Service takes in the reports of nodes and answers questions about them. Make one with New. It is
// safe for concurrent use.
type Service struct {
	store   Store
	sets    Sets
	now     func() time.Time
	replica string
	meter   func(policy, tier string, refused int64)
	heard   func(set *policies.Compiled, m *wire.Decisions)

	mu sync.Mutex
	// recent are the last refusals that nodes reported to this replica, the newest last.
	recent []Decision
	// unsaved are the last refusals that the store has not taken, the newest last.
	unsaved []Decision
	// quiet is until when a bucket's refusals for a reason by a version are not kept again; late is
	// the newest of those that came meanwhile, with the counts of all. second, kept and keptOf
	// bound how many are kept in a second.
	quiet map[string]time.Time
	late  map[string]Decision
	// swept is the second in which those that are late were looked through.
	swept  int64
	second int64
	kept   int
	keptOf map[pair]int

	tops tops
}

// Config is what a Service stands on. Fields must be set unless they say otherwise.
type Config struct {
	Store Store
	Sets  Sets
	// Replica is a name that no other control plane has.
	Replica string
	Now     func() time.Time
	// Meter, if not nil, is called with how many requests nodes report that a policy has refused to
	// callers of a tier; tier is empty for a policy that does not go by tier.
	Meter func(policy, tier string, refused int64)
	// Heard, if not nil, is called with each report and the policy set that it is about.
	Heard func(set *policies.Compiled, m *wire.Decisions)
}

// New makes a Service.
func New(c Config) *Service {
	s := &Service{
		store: c.Store, sets: c.Sets, now: c.Now, replica: c.Replica, meter: c.Meter, heard: c.Heard,
		quiet: map[string]time.Time{}, late: map[string]Decision{}, keptOf: map[pair]int{}, tops: newTops(c.Now()),
	}
	if s.meter == nil {
		s.meter = func(string, string, int64) {}
	}
	if s.heard == nil {
		s.heard = func(*policies.Compiled, *wire.Decisions) {}
	}
	return s
}

// Note takes in a node's report. It drops what does not fit the policy set that the report names,
// and what is more than a replica keeps. After an error of the policy set or of the store this
// replica still has the report.
func (s *Service) Note(ctx context.Context, m *wire.Decisions) error {
	set, err := s.sets.At(ctx, m.Version)
	if err != nil {
		return err
	}
	s.heard(set, m)
	now, node := s.now(), string(m.Node)
	late := s.overdue(now, nil)
	var fresh []Decision
	s.mu.Lock()
	for i := range m.Refusals {
		d, ok := inWords(set, node, &m.Refusals[i], now)
		if ok && s.admit(d, now) {
			fresh = append(fresh, d)
		}
	}
	s.remember(fresh)
	publish := s.tops.note(set, m, now)
	s.mu.Unlock()
	for _, c := range m.Counts {
		if p, ok := pairIn(set, c.Policy, c.Tier); ok {
			s.meter(p.Policy, p.Tier, c.Refused)
		}
	}
	err = s.save(ctx, append(late, fresh...))
	if publish != nil && err == nil {
		err = s.store.PutSlot(ctx, series.Tops.At(now), s.replica, publish)
	}
	return err
}

// save stores refusals, and before them those that the store has not taken so far. What it does not
// take now it gets later, at most as many as this replica remembers.
func (s *Service) save(ctx context.Context, fresh []Decision) error {
	s.mu.Lock()
	all := append(s.unsaved, fresh...)
	s.unsaved = nil
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	err := s.store.AppendDecisions(ctx, all)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unsaved = append(all, s.unsaved...)
		s.unsaved = slices.Clone(s.unsaved[max(0, len(s.unsaved)-remembered):])
	}
	return err
}

// remember keeps refusals in memory. The caller holds the lock.
func (s *Service) remember(list []Decision) {
	s.recent = append(s.recent, list...)
	if over := len(s.recent) - remembered; over > 0 {
		s.recent = slices.Delete(s.recent, 0, over)
	}
}

// again names what is kept once in a quiet time.
func again(d *Decision) string {
	return d.Key + " " + d.Reason + " " + strconv.FormatUint(d.Version, 10)
}

// admit reports whether a refusal is to be kept. One that comes too soon is added to those that are
// late. The caller holds the lock.
func (s *Service) admit(d Decision, now time.Time) bool {
	key := again(&d)
	if now.Before(s.quiet[key]) {
		if before, known := s.late[key]; known || len(s.late) < maxQuiet {
			d.Count += before.Count
			s.late[key] = d
		}
		return false
	}
	before, known := s.late[key]
	d.Count += before.Count
	fits := s.fits(d, now)
	switch {
	case fits:
		delete(s.late, key)
	case known:
		s.late[key] = d
	}
	return fits
}

// fits counts a refusal among those of the second, unless there is no room for it. The caller holds
// the lock.
func (s *Service) fits(d Decision, now time.Time) bool {
	if second := now.Unix(); second != s.second {
		s.second, s.kept = second, 0
		clear(s.keptOf)
	}
	of := pair{d.Policy, d.Tier}
	if s.kept == perSecond || s.keptOf[of] == pairPerSecond {
		return false
	}
	s.kept++
	s.keptOf[of]++
	if len(s.quiet) == maxQuiet {
		clear(s.quiet)
	}
	s.quiet[again(&d)] = now.Add(quiet)
	return true
}

// overdue takes out the late refusals whose quiet time is over, and those that q, if not nil, asks
// for. They are remembered.
func (s *Service) overdue(now time.Time, q *Query) (list []Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q == nil && now.Unix() == s.swept { // It walks through all that are late.
		return nil
	}
	s.swept = now.Unix()
	var due []Decision
	for key, d := range s.late {
		if !now.Before(s.quiet[key]) || q != nil && q.oneCaller() && q.wants(&d) {
			due = append(due, d)
		}
	}
	// Those that have waited longest come first: there may not be room for all.
	slices.SortFunc(due, func(a, b Decision) int { return s.quiet[again(&a)].Compare(s.quiet[again(&b)]) })
	for _, d := range due {
		if s.fits(d, now) {
			list = append(list, d)
			delete(s.late, again(&d))
		}
	}
	slices.SortFunc(list, func(a, b Decision) int { return a.At.Compare(b.At) })
	s.remember(list)
	return list
}

// Query selects refusals. A zero field selects all.
type Query struct {
	// Before is an ID; only older refusals are selected.
	Before string
	// Consumer is a match.ConsumerKey.
	Consumer *keyhash.Key
	// Policy refuses, or a ban of one of the Buckets, which are its own then.
	Policy string
	// Buckets are hashes in hexadecimal, one of which is the refusal's; nil for any.
	Buckets []string
	Since   time.Time
}

func (q Query) wants(d *Decision) bool {
	return (q.Consumer == nil || d.Consumer == q.Consumer.String()) &&
		(q.Policy == "" || d.Policy == q.Policy || q.Buckets != nil && d.Policy == policies.Banned) &&
		(q.Buckets == nil || slices.Contains(q.Buckets, d.Key))
}

// oneCaller reports whether the query is about one caller.
func (q Query) oneCaller() bool { return q.Consumer != nil || q.Buckets != nil }

// chunk is how many refusals are read at a time.
const chunk = 1000

// Find returns at most limit refusals, newest first, and the cursor of the next page, empty if
// there is none. While the store is away it answers from what nodes reported to this replica, and
// complete is false. The error may be ErrCursor.
func (s *Service) Find(
	ctx context.Context, q Query, limit int,
) (found []Decision, next string, complete bool, err error) {
	if q.Before != "" {
		if _, err := Number(q.Before); err != nil {
			return nil, "", false, err
		}
	}
	_ = s.save(ctx, s.overdue(s.now(), &q)) // A store that is away is noticed below.
	if oldest := s.now().Add(-Age); q.Since.Before(oldest) {
		q.Since = oldest
	}
	for before := q.Before; ; {
		page, err := s.store.Decisions(ctx, before, chunk)
		if err != nil {
			found, next = s.known(q, limit)
			return found, next, false, ctx.Err()
		}
		for i := range page {
			d := &page[i]
			before = d.ID
			if !q.wants(d) || d.At.Before(q.Since) {
				continue
			}
			if len(found) == limit {
				return found, found[limit-1].ID, true, nil
			}
			found = append(found, *d)
		}
		if len(page) < chunk || page[len(page)-1].At.Before(q.Since.Add(-time.Minute)) {
			return found, "", true, nil
		}
	}
}

// known answers one page from what nodes reported to this replica.
func (s *Service) known(q Query, limit int) (found []Decision, next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.recent) - 1; i >= 0 && len(found) < limit && q.Before == ""; i-- {
		if d := &s.recent[i]; q.wants(d) && !d.At.Before(q.Since) {
			found = append(found, *d)
		}
	}
	return found, ""
}
