package consumers

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Record is the state of one consumer. The zero value is an unknown consumer.
type Record struct {
	// Tier is the assigned tier; empty if none is assigned.
	Tier string `json:"tier"`
	// Overrides are the consumer's own limits, at most one override for each policy.
	Overrides []Override `json:"overrides,omitempty"`
	// Banned, if not nil, refuses the consumer's requests. Bypass, if not nil, exempts them from
	// limits and charges.
	Banned *Mark `json:"banned,omitempty"`
	Bypass *Mark `json:"bypass,omitempty"`
	// Updated is the time when the record was stored, by the clock of the replica that stored it.
	// By is the name of the token.
	Updated time.Time `json:"updated"`
	By      string    `json:"by"`
	// Revision is the revision of the record's last change.
	Revision uint64 `json:"-"`
}

// Mark is the reason and the end of a ban, a bypass or an override.
type Mark struct {
	Reason string `json:"reason,omitempty"`
	// Expires is the end; zero if the mark ends only when it is removed.
	Expires time.Time `json:"expires_at,omitzero"`
}

// Override has the limits of a consumer that replace a policy's limits. Without limits the policy
// does not apply to the consumer.
type Override struct {
	Policy string  `json:"policy"`
	Limits []Limit `json:"limits,omitempty"`
	Mark
	// Roots has the policy.Limit.Root of each limit; empty before Inherit.
	Roots []quota.Span `json:"roots,omitempty"`
}

// Limit has the parameters of one limit; a burst of 0 means the quota.
type Limit struct {
	Quota  int64
	Window quota.Span
	Burst  int64
}

type limitText struct {
	Quota  int64  `json:"quota"`
	Window string `json:"window"`
	Burst  int64  `json:"burst,omitempty"`
}

// MarshalJSON writes a limit in the form of policy documents.
func (l Limit) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitText{l.Quota, policy.FormatSpan(l.Window), l.Burst})
}

// UnmarshalJSON reads the form that MarshalJSON writes. policy.DecodeOverride reads the documents
// of operators.
func (l *Limit) UnmarshalJSON(b []byte) error {
	var text limitText
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	window, ok := policy.ParseSpan(text.Window)
	if !ok {
		return fmt.Errorf("%q is not a length of time", text.Window)
	}
	*l = Limit{text.Quota, window, text.Burst}
	return nil
}

// Ends reports whether the mark has ended by now; true for a nil mark.
func (m *Mark) Ends(now time.Time) bool {
	return m == nil || !m.Expires.IsZero() && !m.Expires.After(now)
}

// end returns the end of a mark in the form of messages, 0 for a mark that has ended.
func (m *Mark) end(now time.Time) int64 {
	switch {
	case m.Ends(now):
		return 0
	case m.Expires.IsZero():
		return wire.ForGood
	}
	return m.Expires.UnixMilli()
}

// grace is the time in which nodes still receive an override after its end: their clocks may be
// behind.
const grace = time.Minute

// Special returns the parts of a record that nodes receive beside the tier.
func (r *Record) Special(now time.Time) wire.Exceptions {
	s := wire.Exceptions{Banned: r.Banned.end(now), Bypass: r.Bypass.end(now)}
	for i := range r.Overrides {
		o := &r.Overrides[i]
		until := o.end(now.Add(-grace))
		if until == 0 {
			continue
		}
		own := wire.Override{Policy: o.Policy, Until: until}
		rooted := len(o.Roots) == len(o.Limits)
		for n, l := range o.Limits {
			f := wire.Figures{Quota: l.Quota, Window: l.Window, Burst: l.Burst}
			if rooted {
				f.Root = o.Roots[n]
			}
			own.Limits = append(own.Limits, f)
		}
		s.Overrides = append(s.Overrides, own)
	}
	return s
}

// FindPolicy returns the policy of an override, and its set: from the first set in which the policy
// counts by consumer, otherwise from the first set that has it; nil if no set has it.
func FindPolicy(sets []*policy.Set, name string) (of *policy.Set, found *policy.Policy) {
	for _, set := range sets {
		at := slices.IndexFunc(set.Policies, func(p policy.Policy) bool { return p.Name == name })
		if at >= 0 && (found == nil || set.Policies[at].ByConsumer()) {
			of, found = set, &set.Policies[at]
		}
		if found != nil && found.ByConsumer() {
			break
		}
	}
	return of, found
}

// Inherit gives the limits of the record, which replaces another record, the buckets of the
// consumer's present limits: limits of the policy that FindPolicy returns, or own limits. So
// earlier use still counts, whatever the windows.
func (r *Record) Inherit(sets []*policy.Set, before *Record) {
	for i := range r.Overrides {
		o := &r.Overrides[i]
		var of, was []policy.Limit
		if set, p := FindPolicy(sets, o.Policy); p != nil {
			of = p.LimitsOf(set.Identity.DefaultTier)
		}
		own := o.windows()
		for n := range before.Overrides {
			if b := &before.Overrides[n]; b.Policy == o.Policy {
				was = b.windows()
			}
		}
		policy.InheritOwn(own, of, was)
		o.Roots = make([]quota.Span, len(own))
		for n := range own {
			o.Roots[n] = own[n].Root
		}
	}
}

// windows returns the limits with only their windows and roots.
func (o *Override) windows() []policy.Limit {
	limits := make([]policy.Limit, len(o.Limits))
	for i := range limits {
		if limits[i].Window = o.Limits[i].Window; len(o.Roots) == len(limits) {
			limits[i].Root = o.Roots[i]
		}
	}
	return limits
}

// At returns the record without the parts that have ended by now.
func (r Record) At(now time.Time) Record {
	if r.Banned.Ends(now) {
		r.Banned = nil
	}
	if r.Bypass.Ends(now) {
		r.Bypass = nil
	}
	var live []Override
	for i := range r.Overrides {
		if !r.Overrides[i].Ends(now) {
			live = append(live, r.Overrides[i])
		}
	}
	r.Overrides = live
	return r
}

// Ends returns the times in Unix milliseconds at which the record has no more than a tier, and at
// which its ban ends: 0 for no ban, math.MaxInt64 for no end. Stores use them to find the records
// that nodes need.
func (r *Record) Ends() (special, banned int64) {
	if r == nil {
		return 0, 0
	}
	var always time.Time // Parts that have ended already are removed when the record is read.
	banned = r.Banned.end(always)
	special = max(banned, r.Bypass.end(always))
	for i := range r.Overrides {
		if end := r.Overrides[i].end(always); end == math.MaxInt64 {
			special = end
		} else {
			special = max(special, end+grace.Milliseconds())
		}
	}
	return special, banned
}

// Override returns the override of a policy that has not ended by now; nil for none.
func (r *Record) Override(name string, now time.Time) *Override {
	for i := range r.Overrides {
		if o := &r.Overrides[i]; o.Policy == name && !o.Ends(now) {
			return o
		}
	}
	return nil
}

// Of returns the override's limits in the counting of a policy of the set, with the buckets of the
// limits that they replace. An error means that they do not fit the counting: then the override has
// no effect.
func (o *Override) Of(set *policy.Set, p *policy.Policy) (limits []policy.Limit, err error) {
	if len(p.Reserve) > 0 {
		return nil, fmt.Errorf("policy %s reserves a part of its limits for classes", p.Name)
	}
	for _, l := range o.Limits {
		own, err := p.Counting.Override(l.Quota, l.Window, l.Burst)
		if err != nil {
			return nil, err
		}
		limits = append(limits, own)
	}
	if len(o.Roots) != len(limits) {
		policy.Inherit(limits, p.LimitsOf(set.Identity.DefaultTier), nil)
		return limits, nil
	}
	for i := range limits {
		limits[i].Root = o.Roots[i]
	}
	return limits, nil
}
