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

// Service accepts the reports of nodes and answers questions about them. Make a Service with New.
// It is safe for concurrent use.
type Service struct {
	store   Store
	sets    Sets
	now     func() time.Time
	replica string
	meter   func(policy, tier string, refused int64)
	heard   func(set *policies.Compiled, m *wire.Decisions)

	mu sync.Mutex
	// recent are the last refusals reported to this replica, the newest last.
	recent []Decision
	// unsaved are refusals that the store has not accepted yet, the newest last.
	unsaved []Decision
	// quiet has, for a bucket, reason and version, the time until which refusals are not stored.
	// late has the newest refusal since then, with the sum of all counts. second, kept and keptOf
	// bound the refusals stored in one second.
	quiet map[string]time.Time
	late  map[string]Decision
	// swept is the second in which late was last searched.
	swept  int64
	second int64
	kept   int
	keptOf map[pair]int

	tops tops
}

// Config configures a Service. All fields are required unless they say otherwise.
type Config struct {
	Store Store
	Sets  Sets
	// Replica is the name of this control plane; no other has the same name.
	Replica string
	Now     func() time.Time
	// Meter, if not nil, is called with the number of reported refusals by a policy of callers of a
	// tier; tier is empty for a policy without limits by tier.
	Meter func(policy, tier string, refused int64)
	// Heard, if not nil, is called with each report and its policy set.
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

// Note accepts a report of a node. It drops refusals that do not fit the policy set of the report,
// and refusals beyond a replica's bounds. After an error of the policy set or of the store this
// replica still has the report.
func (s *Service) Note(ctx context.Context, m *wire.Decisions) error {
	set, err := s.sets.At(ctx, m.Version)
	if err != nil {
		return err
	}
	// Convert the refusals, and select the ones to store.
	s.heard(set, m)
	now, node := s.now(), string(m.Node)
	late := s.takeOverdue(now, nil)
	var fresh []Decision
	s.mu.Lock()
	for i := range m.Refusals {
		d, ok := inWords(set, node, &m.Refusals[i], now)
		if ok && s.admitRefusal(d, now) {
			fresh = append(fresh, d)
		}
	}
	s.rememberRefusals(fresh)
	publish := s.tops.noteReport(set, m, now)
	s.mu.Unlock()
	// Count all refusals, also the refusals that are not stored.
	for _, c := range m.Counts {
		if p, ok := pairIn(set, c.Policy, c.Tier); ok {
			s.meter(p.Policy, p.Tier, c.Refused)
		}
	}
	err = s.saveRefusals(ctx, append(late, fresh...))
	if publish != nil && err == nil {
		err = s.store.PutSlot(ctx, series.Tops.At(now), s.replica, publish)
	}
	return err
}

// saveRefusals stores refusals, and before them the refusals that the store has not accepted yet.
// If the store does not accept them now, it gets them later, as far as this replica remembers them.
func (s *Service) saveRefusals(ctx context.Context, fresh []Decision) error {
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

// rememberRefusals keeps refusals in memory. The caller holds the lock.
func (s *Service) rememberRefusals(list []Decision) {
	s.recent = append(s.recent, list...)
	if over := len(s.recent) - remembered; over > 0 {
		s.recent = slices.Delete(s.recent, 0, over)
	}
}

// quietKey returns the key of a refusal in quiet and late.
func quietKey(d *Decision) string {
	return d.Key + " " + d.Reason + " " + strconv.FormatUint(d.Version, 10)
}

// admitRefusal reports whether a refusal is stored now. A refusal in a quiet time is added to late.
// The caller holds the lock.
func (s *Service) admitRefusal(d Decision, now time.Time) bool {
	key := quietKey(&d)
	if now.Before(s.quiet[key]) {
		if before, known := s.late[key]; known || len(s.late) < maxQuiet {
			d.Count += before.Count
			s.late[key] = d
		}
		return false
	}
	before, known := s.late[key]
	d.Count += before.Count
	fits := s.countInSecond(d, now)
	switch {
	case fits:
		delete(s.late, key)
	case known:
		s.late[key] = d
	}
	return fits
}

// countInSecond counts a refusal for this second, if there is room for it. The caller holds the
// lock.
func (s *Service) countInSecond(d Decision, now time.Time) bool {
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
	s.quiet[quietKey(&d)] = now.Add(quiet)
	return true
}

// takeOverdue removes from late the refusals whose quiet time is over, and the refusals that q, if
// not nil, asks for. It remembers them.
func (s *Service) takeOverdue(now time.Time, q *Query) (list []Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q == nil && now.Unix() == s.swept { // The search goes through all late refusals, so it is done once a second.
		return nil
	}
	s.swept = now.Unix()
	var due []Decision
	for key, d := range s.late {
		if !now.Before(s.quiet[key]) || q != nil && q.oneCaller() && q.selects(&d) {
			due = append(due, d)
		}
	}
	// The longest waiting come first, because there may not be room for all.
	slices.SortFunc(due, func(a, b Decision) int { return s.quiet[quietKey(&a)].Compare(s.quiet[quietKey(&b)]) })
	for _, d := range due {
		if s.countInSecond(d, now) {
			list = append(list, d)
			delete(s.late, quietKey(&d))
		}
	}
	slices.SortFunc(list, func(a, b Decision) int { return a.At.Compare(b.At) })
	s.rememberRefusals(list)
	return list
}

// Query selects refusals. A zero field selects all.
type Query struct {
	// Before is an ID; only older refusals are selected.
	Before string
	// Consumer is a match.ConsumerKey.
	Consumer *keyhash.Key
	// Policy selects refusals by this policy, and by bans of the Buckets, which then belong to the
	// policy.
	Policy string
	// Buckets are hashes in hexadecimal; the refusal has one of them; nil for any.
	Buckets []string
	Since   time.Time
}

func (q Query) selects(d *Decision) bool {
	return (q.Consumer == nil || d.Consumer == q.Consumer.String()) &&
		(q.Policy == "" || d.Policy == q.Policy || q.Buckets != nil && d.Policy == policies.Banned) &&
		(q.Buckets == nil || slices.Contains(q.Buckets, d.Key))
}

// oneCaller reports whether the query selects one caller.
func (q Query) oneCaller() bool { return q.Consumer != nil || q.Buckets != nil }

// chunk is the number of refusals in one read.
const chunk = 1000

// Find returns at most limit refusals, the newest first, and the cursor of the next page, empty if
// there is none. While the store is away it answers from the reports to this replica, and complete
// is false. The error may be ErrCursor.
func (s *Service) Find(
	ctx context.Context, q Query, limit int,
) (found []Decision, next string, complete bool, err error) {
	// Check the cursor, and store late refusals first.
	if q.Before != "" {
		if _, err := Number(q.Before); err != nil {
			return nil, "", false, err
		}
	}
	_ = s.saveRefusals(ctx, s.takeOverdue(s.now(), &q)) // If the store is away, this is noticed below.
	if oldest := s.now().Add(-Age); q.Since.Before(oldest) {
		q.Since = oldest
	}
	// Read page by page.
	for before := q.Before; ; {
		page, err := s.store.Decisions(ctx, before, chunk)
		if err != nil {
			found, next = s.findKnown(q, limit)
			return found, next, false, ctx.Err()
		}
		for i := range page {
			d := &page[i]
			before = d.ID
			if !q.selects(d) || d.At.Before(q.Since) {
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

// findKnown answers one page from the reports to this replica.
func (s *Service) findKnown(q Query, limit int) (found []Decision, next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.recent) - 1; i >= 0 && len(found) < limit && q.Before == ""; i-- {
		if d := &s.recent[i]; q.selects(d) && !d.At.Before(q.Since) {
			found = append(found, *d)
		}
	}
	return found, ""
}
