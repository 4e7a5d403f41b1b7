package consumers

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Record is what is known of one consumer. The zero value is of one of whom nothing is.
type Record struct {
	// Tier is empty for none.
	Tier string `json:"tier"`
	// Overrides are limits of the consumer's own, at most one for each policy.
	Overrides []Override `json:"overrides,omitempty"`
	// Banned consumers are refused; a Bypass is never limited nor charged.
	Banned *Mark `json:"banned,omitempty"`
	Bypass *Mark `json:"bypass,omitempty"`
	// Updated is when it was put, by the clock of the replica that took it; By is the name of the
	// token that put it.
	Updated time.Time `json:"updated"`
	By      string    `json:"by"`
	// Revision is that of the change that made the record.
	Revision uint64 `json:"-"`
}

// Mark says why something is so, and until when.
type Mark struct {
	Reason string `json:"reason,omitempty"`
	// Expires is zero for what ends only when it is taken back.
	Expires time.Time `json:"expires_at,omitzero"`
}

// Override are the limits that a consumer has under a policy in place of the policy's own; none:
// the policy does not apply to it.
type Override struct {
	Policy string  `json:"policy"`
	Limits []Limit `json:"limits,omitempty"`
	Mark
}

// Limit are the figures of one limit; a burst of 0 is the quota.
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

// MarshalJSON writes a limit as documents do.
func (l Limit) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitText{l.Quota, policy.FormatSpan(l.Window), l.Burst})
}

// UnmarshalJSON reads what MarshalJSON writes. Documents of people are for policy.DecodeOverride to
// read.
func (l *Limit) UnmarshalJSON(b []byte) error {
	var text limitText
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	window, ok := policy.ParseSpan(text.Window)
	if !ok {
		return fmt.Errorf("%q is no length of time", text.Window)
	}
	*l = Limit{text.Quota, window, text.Burst}
	return nil
}

// Ends reports whether the mark is over at now; one that is nil is.
func (m *Mark) Ends(now time.Time) bool {
	return m == nil || !m.Expires.IsZero() && !m.Expires.After(now)
}

// end is when a mark ends in the wire's form, 0 for one that is over.
func (m *Mark) end(now time.Time) int64 {
	switch {
	case m.Ends(now):
		return 0
	case m.Expires.IsZero():
		return wire.ForGood
	}
	return m.Expires.UnixMilli()
}

// grace is how long nodes hear of an override that has ended: by another clock it may not have.
const grace = time.Minute

// Special is what nodes receive of a record besides its tier, at now.
func (r *Record) Special(now time.Time) wire.Special {
	s := wire.Special{Banned: r.Banned.end(now), Bypass: r.Bypass.end(now)}
	for i := range r.Overrides {
		o := &r.Overrides[i]
		until := o.end(now.Add(-grace))
		if until == 0 {
			continue
		}
		own := wire.Override{Policy: o.Policy, Until: until}
		for _, l := range o.Limits {
			own.Limits = append(own.Limits, wire.Figures{Quota: l.Quota, Window: l.Window, Burst: l.Burst})
		}
		s.Overrides = append(s.Overrides, own)
	}
	return s
}

// At is the record without what has ended by now.
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

// Ends are the instants in Unix milliseconds until which a record has more than a tier and until
// which it is banned: 0 if it is not, math.MaxInt64 if that never ends by itself. Stores find by
// them whom nodes must know.
func (r *Record) Ends() (special, banned int64) {
	if r == nil {
		return 0, 0
	}
	var always time.Time // Whether something has ended already is for later to say.
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

// Override is the consumer's override of a policy that has not ended by now; nil for none.
func (r *Record) Override(name string, now time.Time) *Override {
	for i := range r.Overrides {
		if o := &r.Overrides[i]; o.Policy == name && !o.Ends(now) {
			return o
		}
	}
	return nil
}

// Of are the limits as the policy counts. An error says that they do not fit that: the override
// sleeps.
func (o *Override) Of(p *policy.Policy) (limits []policy.Limit, err error) {
	for _, l := range o.Limits {
		own, err := p.Counting.Override(l.Quota, l.Window, l.Burst)
		if err != nil {
			return nil, err
		}
		limits = append(limits, own)
	}
	return limits, nil
}

// Encode is a record as stores keep it, without its revision, which the store itself puts before
// it.
func (r Record) Encode() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

// Decode reads what a store keeps: the revision, a space, and what Encode made.
func Decode(stored string) (r Record, err error) {
	revision, text, _ := strings.Cut(stored, " ")
	if err = json.Unmarshal([]byte(text), &r); err == nil {
		r.Revision, err = strconv.ParseUint(revision, 10, 64)
	}
	if err != nil {
		return Record{}, fmt.Errorf("the stored consumer is damaged: %w", err)
	}
	return r, nil
}
