package decisions

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// Counters is the number of callers that a replica counts for each policy and tier in a span.
	Counters = 100
	// maxPairs bounds the policies and tiers whose callers are counted. published is the number of
	// callers of each that a replica publishes.
	maxPairs  = 200
	published = 20
	// span is the length of a count; the span before is kept too.
	span = 5 * time.Minute
	// TopAge is the time for which the published counts of a replica are valid.
	TopAge  = 2 * span
	publish = 5 * time.Second
)

// By is the counted quantity.
type By string

// ByRefused counts refused requests, ByRequests all requests on which policies were enforced.
const (
	ByRefused  By = "refused"
	ByRequests By = "requests"
)

// pair is a policy and a tier.
type pair struct{ Policy, Tier string }

// TopCaller is one of the heaviest callers.
type TopCaller struct {
	Policy string `json:"policy"`
	Tier   string `json:"tier,omitempty"`
	// Key is the hash of the bucket, Consumer the hash of the consumer, in hexadecimal; Consumer is
	// empty if it is not known.
	Key      string            `json:"key"`
	Consumer string            `json:"consumer,omitempty"`
	Shown    map[string]string `json:"shown,omitempty"`
	// Count is the number of requests, of which up to Over may belong to other callers.
	Count int64 `json:"count"`
	Over  int64 `json:"over"`
}

// counts are the counts of the callers of one policy and tier.
type counts struct {
	refused, requests *Summary
	// all are the refused requests, counted exactly.
	all int64
}

// spanCounts are the counts of one span.
type spanCounts struct {
	since time.Time
	of    map[pair]*counts
}

// tops are the heaviest callers in the reports to this replica.
type tops struct {
	now, before spanCounts
	published   time.Time
}

func newSpan(since time.Time) spanCounts { return spanCounts{since: since, of: map[pair]*counts{}} }

func newTops(now time.Time) tops { return tops{now: newSpan(now), before: newSpan(now)} }

func (t *spanCounts) countsOf(p pair) *counts {
	c := t.of[p]
	if c == nil && len(t.of) < maxPairs {
		c = &counts{NewSummary(Counters), NewSummary(Counters), 0}
		t.of[p] = c
	}
	return c
}

// turnSpan begins a new span if the present span is over.
func (t *tops) turnSpan(now time.Time) {
	switch age := now.Sub(t.now.since); {
	case age >= 2*span:
		t.now, t.before = newSpan(now), newSpan(now)
	case age >= span:
		t.now, t.before = newSpan(now), t.now
	}
}

// pairIn returns a policy and a tier of a set by their numbers in messages. ok is false for numbers
// that the set does not have.
func pairIn(set *policies.Compiled, of uint32, tier uint8) (p pair, ok bool) {
	name, ok := set.NameOf(of)
	return pair{name, tierOf(set.Set, tier)}, ok && set.HasTier(tier)
}

// noteReport counts a report of a node, and returns the text to publish, if that is due.
func (t *tops) noteReport(c *policies.Compiled, m *wire.Decisions, now time.Time) []byte {
	t.turnSpan(now)
	pairOf := func(of uint32, tier uint8) *counts {
		p, ok := pairIn(c, of, tier)
		if !ok {
			return nil
		}
		return t.now.countsOf(p)
	}
	// add adds a caller, unless its whole count may belong to other callers.
	add := func(s *Summary, caller *wire.CallerCount) {
		if own := caller.Count - caller.Over; own > 0 {
			counter := s.Add(caller.Bucket.String(), caller.Count, caller.Over)
			counter.About = detailsOf(c.Set, caller)
		}
	}
	// Count refusals, refused callers, and all callers.
	for _, one := range m.Counts {
		if p := pairOf(one.Policy, one.Tier); p != nil {
			p.all += one.Refused
		}
	}
	for i := range m.Refusals {
		r := &m.Refusals[i]
		if _, _, _, fits := c.RefusedBy(r); !fits && r.Policy != wire.BanPolicy {
			continue
		}
		if p := pairOf(r.Policy, r.Tier); p != nil {
			add(p.refused, &r.CallerCount)
		}
	}
	for i := range m.Callers {
		if p := pairOf(m.Callers[i].Policy, m.Callers[i].Tier); p != nil {
			add(p.requests, &m.Callers[i])
		}
	}
	// Publish from time to time.
	if now.Sub(t.published) < publish {
		return nil
	}
	t.published = now
	text, err := json.Marshal(t.mergeSpans(published))
	if err != nil {
		return nil
	}
	return text
}

// detailsOf returns the details of a caller beside its count.
func detailsOf(set *policy.Set, caller *wire.CallerCount) TopCaller {
	var a TopCaller
	if hasConsumer(caller) {
		a.Consumer = caller.Consumer.String()
	}
	a.Shown = ReadShown(set, caller.Shown)
	return a
}

// publication has the counts that one replica publishes.
type publication struct {
	// Since is the start of the counts, At the time of publication.
	Since time.Time          `json:"since"`
	At    time.Time          `json:"at"`
	By    map[By][]TopCaller `json:"by"`
	// Refused are the refusals of each policy and tier; they are exact.
	Refused []pairCount `json:"refused"`
}

type pairCount struct {
	pair
	Count int64
}

// mergeSpans merges both spans. It returns the n heaviest callers of each policy and tier.
func (t *tops) mergeSpans(n int) publication {
	all := publication{Since: t.before.since, At: t.published, By: map[By][]TopCaller{}}
	for p := range allPairs(t.now.of, t.before.of) {
		// Merge the counters of both spans.
		for by, of := range map[By]func(*counts) *Summary{
			ByRefused:  func(c *counts) *Summary { return c.refused },
			ByRequests: func(c *counts) *Summary { return c.requests },
		} {
			both := NewSummary(2 * Counters)
			for _, part := range []spanCounts{t.before, t.now} {
				if c := part.of[p]; c != nil {
					addAll(both, of(c))
				}
			}
			for _, c := range both.Top(n) {
				all.By[by] = append(all.By[by], topCaller(p, c))
			}
		}
		// Add up the refusals of both spans.
		refused := pairCount{pair: p}
		for _, part := range []spanCounts{t.before, t.now} {
			if c := part.of[p]; c != nil {
				refused.Count += c.all
			}
		}
		all.Refused = append(all.Refused, refused)
	}
	return all
}

func allPairs(a, b map[pair]*counts) map[pair]bool {
	keys := map[pair]bool{}
	for _, m := range []map[pair]*counts{a, b} {
		for p := range m {
			keys[p] = true
		}
	}
	return keys
}

func addAll(into, from *Summary) {
	for _, c := range from.Top(Counters) {
		into.Add(c.Key, c.Count, c.Over).About = c.About
	}
}

func topCaller(p pair, c Counter) TopCaller {
	one, _ := c.About.(TopCaller)
	one.Policy = p.Policy
	one.Tier = p.Tier
	one.Key = c.Key
	one.Count = c.Count
	one.Over = c.Over
	return one
}

// Top is the answer to a question about the heaviest callers.
type Top struct {
	By    By
	Since time.Time
	// Refused is the number of refusals of the selected policies and tiers; it is exact.
	Refused int64
	Callers []TopCaller
	// Complete is false if the store is away: then only reports to this replica are included.
	Complete bool
}

// Top returns the n heaviest callers of all replicas, of one policy and tier if these are given.
func (s *Service) Top(ctx context.Context, by By, policy, tier string, n int) Top {
	now := s.now()
	s.mu.Lock()
	s.tops.turnSpan(now)
	own := s.tops.mergeSpans(Counters)
	s.mu.Unlock()
	others, err := s.readOthers(ctx, now)
	answer := Top{By: by, Since: own.Since, Complete: err == nil}
	// Add the counts of all replicas.
	sum := NewSummary(maxPairs * Counters)
	for _, t := range append(others, own) {
		if t.Since.Before(answer.Since) {
			answer.Since = t.Since
		}
		for _, refused := range t.Refused {
			if refused.wanted(policy, tier) {
				answer.Refused += refused.Count
			}
		}
		for _, c := range t.By[by] {
			if p := (pair{c.Policy, c.Tier}); p.wanted(policy, tier) {
				counter := sum.Add(c.Policy+" "+c.Tier+" "+c.Key, c.Count, c.Over)
				counter.About = c
			}
		}
	}
	for _, c := range sum.Top(n) {
		one := c.About.(TopCaller)
		one.Count, one.Over = c.Count, c.Over
		answer.Callers = append(answer.Callers, one)
	}
	return answer
}

func (p pair) wanted(policy, tier string) bool {
	return (policy == "" || p.Policy == policy) && (tier == "" || p.Tier == tier)
}

// readOthers returns the last publication of each other replica, if it is still valid.
func (s *Service) readOthers(ctx context.Context, now time.Time) ([]publication, error) {
	// The clock of another replica may be in the next slot already.
	var slots []series.Slot
	for at := now.Add(-TopAge); at.Before(now.Add(2 * span)); at = at.Add(span) {
		slots = append(slots, series.Tops.At(at))
	}
	found, err := s.store.Slots(ctx, slots)
	last := map[string]publication{}
	for _, slot := range found {
		for replica, text := range slot {
			var t publication
			if replica == s.replica || json.Unmarshal(text, &t) != nil {
				continue // Another version may write another format.
			}
			if now.Sub(t.At) <= TopAge && !t.At.Before(last[replica].At) {
				last[replica] = t
			}
		}
	}
	return slices.Collect(maps.Values(last)), err
}
