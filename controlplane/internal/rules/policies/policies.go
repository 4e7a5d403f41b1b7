// Package policies keeps the policy set: its versions, the versions in force, and the meaning of
// each version.
package policies

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Kept is the number of versions that a store keeps; a new version drops the oldest.
const Kept = 256

// EmptyDocument is the policy set of an empty store.
const EmptyDocument = "version: weir/v1\npolicies: []\n"

// Reasons for which a store or the service refuses a change. Any other error means that the store
// did not answer.
var (
	// ErrNotFound means that there is no such version, or no longer.
	ErrNotFound = errs.New(errs.NotFound, "there is no such version", fmt.Sprintf(
		"there is no such version, or it has been dropped: the newest %d are kept, and weir get versions lists them",
		Kept))
	// ErrUnreadable means that this build cannot read the stored document.
	ErrUnreadable = errs.New(errs.Unreadable, "the stored policy set cannot be read by this version of weir",
		"the stored policy set was written by another version of weir and this one cannot read it: "+
			"finish the upgrade, or roll back from a control plane that can read it")
)

// Version is a stored version of the policy set.
type Version struct {
	// Number counts from 1.
	Number uint64 `json:"version"`
	// Time is the time when the version was stored, by the clock of the replica that stored it.
	Time time.Time `json:"time"`
	// Author is the name of the token that stored the version.
	Author string `json:"author"`
	// Digest is the SHA-256 of Document in hexadecimal.
	Digest string `json:"digest"`
	// Summary describes the change for people.
	Summary string `json:"summary"`
	// Rollout is the outcome if some nodes got the version first: RolloutUnderWay, RolloutPromoted
	// or RolloutTakenBack. It is empty for a version that all nodes got at once.
	Rollout string           `json:"rollout,omitempty"`
	Format  policydoc.Format `json:"media_type"`
	// Roots are the roots of the document's limits: a limit uses the buckets of an earlier limit
	// with the same root. Only stores keep them.
	Roots Roots `json:"-"`
	// Gone are limits of earlier versions that are no longer in the lists. Only stores keep them.
	Gone Gone `json:"-"`
	// Document is the text as it was written; lists of versions leave it out.
	Document []byte `json:"-"`
}

// markBytes is the length of a mark in bytes, before hexadecimal.
const markBytes = 8

// Mark returns a mark of the version: a hash of its digest and the secret, which reveals nothing
// about the secret. It distinguishes the version from another version that had its number before
// the store lost it, and from the same version with another secret. It is empty for a version
// without a digest.
func (v *Version) Mark(secret [16]byte) string {
	if v.Digest == "" {
		return ""
	}
	h := hmac.New(sha256.New, secret[:])
	h.Write([]byte(v.Digest))
	return hex.EncodeToString(h.Sum(nil)[:markBytes])
}

// Is reports whether both versions have the same document and the same number.
func (v *Version) Is(other *Version) bool {
	return v.Number == other.Number && v.Digest == other.Digest
}

// Store keeps versions. Methods return ErrNotFound and errs.Conflict unchanged; any other error
// means that the store did not answer.
type Store interface {
	// State returns the numbers of the versions in force.
	State(ctx context.Context) (State, error)
	// Load returns a version with its document.
	Load(ctx context.Context, number uint64) (Version, error)
	// Append stores v as the current version if the expected version is current, no rollout is
	// under way, and v.Number is above all numbers that were used. It also stores the audit entry,
	// and drops versions that are Kept or more numbers older and not in force.
	Append(ctx context.Context, expected uint64, v Version, e audit.Entry) error
	// Roll takes a step of a rollout and stores the audit entry, if Current and Revision of the
	// store equal these fields of the step's From. New versions must have numbers above all numbers
	// that were used.
	Roll(ctx context.Context, step Step) error
	// List returns at most limit versions below before, newest first, without documents. A before
	// of 0 starts at the newest.
	List(ctx context.Context, before uint64, limit int) ([]Version, error)
}

// Compiled is a version ready for use. It is immutable.
type Compiled struct {
	Version Version
	Set     *policy.Set
	byName  map[string]int
	// places are all limits in the order in which nodes number them: the limits of each policy,
	// tier by tier, and then its candidates.
	places []place
}

// place is a limit of a policy.
type place struct {
	// policy is the index of the policy, limit the index in the list of limits.
	policy, limit int
	// tier is the index of the tier; -1 if the policy's limits do not differ by tier.
	tier int
	// candidate is true for a limit of the policy's candidate.
	candidate bool
}

// Banned is used in place of a policy's name for refusals by bans. No policy can have this name.
const Banned = "(banned)"

// NameOf returns the name of the policy with a number in messages of nodes, and Banned for bans. ok
// is false for a number that the set does not have.
func (c *Compiled) NameOf(number uint32) (name string, ok bool) {
	switch {
	case int(number) < len(c.Set.Policies):
		return c.Set.Policies[number].Name, true
	case number == wire.BanPolicy:
		return Banned, true
	}
	return "", false
}

// Policy returns the policy of that name.
func (c *Compiled) Policy(name string) (*policy.Policy, bool) {
	i, ok := c.byName[name]
	if !ok {
		return nil, false
	}
	return &c.Set.Policies[i], true
}

// Resolve finds the limit with a number of c in the current set. It uses the names of the policy
// and of the tier, and the limit's root: a limit that has moved, in the document or in its list, is
// the same limit. A limit that had no tier then, or whose tier is gone, resolves to the default
// tier. The result is false if the policy or the limit is gone.
func (c *Compiled) Resolve(number uint32, current *Compiled) (*policy.Policy, policy.Limit, bool) {
	p, limits := c.ResolveAll(number, current)
	if p == nil {
		return nil, policy.Limit{}, false
	}
	was, step := c.listed(number)
	l, ok := p.Find(limits, &was, step)
	if !ok {
		p = nil
	}
	return p, l, ok
}

// listed returns the limit with a number, and its step. The set must have the number.
func (c *Compiled) listed(number uint32) (policy.Limit, int) {
	at := c.places[number]
	p := &c.Set.Policies[at.policy]
	limits := p.Candidate
	if !at.candidate {
		limits = p.LimitsOf(max(at.tier, 0))
	}
	return limits[at.limit], p.StepOf(limits, at.limit)
}

// ResolveAll returns the policy of Resolve and all limits of its tier; nil if the policy is gone.
func (c *Compiled) ResolveAll(number uint32, current *Compiled) (*policy.Policy, []policy.Limit) {
	if int(number) >= len(c.places) {
		return nil, nil
	}
	at := c.places[number]
	p, ok := current.Policy(c.Set.Policies[at.policy].Name)
	switch {
	case !ok:
		return nil, nil
	case at.candidate:
		return p, p.Candidate
	}
	return p, p.LimitsOf(current.tierIn(c, at.tier))
}

// TierOf returns the name of a limit's tier; empty if the limit is for all tiers, as a candidate
// is, or not known.
func (c *Compiled) TierOf(number uint32) string {
	if int(number) >= len(c.places) || c.places[number].tier < 0 || c.places[number].candidate {
		return ""
	}
	return c.Set.Tiers[c.places[number].tier]
}

// NumberOf returns the number of the limit of p, in the list of a tier, that uses the same buckets
// as a limit and belongs to a step. If there is none, it returns the number of the list's first
// limit.
func (c *Compiled) NumberOf(p *policy.Policy, tier string, like *policy.Limit, step int) (number uint32) {
	found := false
	for i, at := range c.places {
		if &c.Set.Policies[at.policy] != p || at.candidate || at.tier >= 0 && c.Set.Tiers[at.tier] != tier {
			continue
		}
		l, in := c.listed(uint32(i))
		if l.Root == like.Root && l.InFlight == like.InFlight && in == step {
			return uint32(i)
		}
		if !found {
			number, found = uint32(i), true
		}
	}
	return number
}

// IsCandidate reports whether a limit is a candidate.
func (c *Compiled) IsCandidate(number uint32) bool {
	return int(number) < len(c.places) && c.places[number].candidate
}

// LimitAt returns the limit with a number, its policy, and whether the limit is for a tier. ok is
// false for a number that the set does not have.
func (c *Compiled) LimitAt(number uint32) (p *policy.Policy, l policy.Limit, byTier, ok bool) {
	if int(number) >= len(c.places) {
		return nil, l, false, false
	}
	at := c.places[number]
	l, _ = c.listed(number)
	return &c.Set.Policies[at.policy], l, at.tier >= 0, true
}

// RefusedBy returns the policy and the limit of a refusal, like LimitAt. ok is also false if the
// node names a limit of another policy, a tier that the set does not have, or no tier though the
// limits differ by tier. The limit may belong to another tier: a consumer can have more limits of
// its own than the document has, and they use any number.
func (c *Compiled) RefusedBy(r *wire.Refusal) (p *policy.Policy, l policy.Limit, byTier, ok bool) {
	p, l, byTier, ok = c.LimitAt(r.Limit)
	ok = ok && int(r.Policy) < len(c.Set.Policies) && p == &c.Set.Policies[r.Policy] && c.HasTier(r.Tier) &&
		(!byTier || r.Tier > 0)
	return p, l, byTier, ok
}

// HasTier reports whether the number of a tier is valid in a message: see wire.RefusedCount.
func (c *Compiled) HasTier(number uint8) bool { return int(number) <= len(c.Set.Tiers) }

// StepOf returns the step of the policy that a limit belongs to: see policy.Policy.Steps. It is 0
// for a number that the set does not have.
func (c *Compiled) StepOf(number uint32) (step int) {
	if int(number) < len(c.places) {
		_, step = c.listed(number)
	}
	return step
}

// tierIn returns the index in c of a tier of another set, by its name; the default tier if c has no
// such tier.
func (c *Compiled) tierIn(of *Compiled, number int) int {
	if number >= 0 {
		for i, name := range c.Set.Tiers {
			if name == of.Set.Tiers[number] {
				return i
			}
		}
	}
	return c.Set.Identity.DefaultTier
}

func compileVersion(v Version) (*Compiled, error) {
	set, err := policydoc.Load(v.Document, v.Format)
	if err != nil {
		return nil, err
	}
	setRoots(set, v.Roots)
	return newCompiled(v, set), nil
}

func newCompiled(v Version, set *policy.Set) *Compiled {
	c := &Compiled{Version: v, Set: set, byName: make(map[string]int, len(set.Policies))}
	for i := range set.Policies {
		p := &set.Policies[i]
		c.byName[p.Name] = i
		if len(p.Tiers) == 0 {
			c.addPlaces(place{policy: i, tier: -1}, len(p.Limits))
		}
		for tier := range p.Tiers {
			c.addPlaces(place{policy: i, tier: tier}, len(p.LimitsOf(tier)))
		}
		c.addPlaces(place{policy: i, candidate: true}, len(p.Candidate))
	}
	return c
}

func (c *Compiled) addPlaces(first place, count int) {
	for ; first.limit < count; first.limit++ {
		c.places = append(c.places, first)
	}
}
