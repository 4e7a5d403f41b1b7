package api

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// subject is a caller about whom something is asked: a consumer, a partition key of a policy, or
// both.
type subject struct {
	policy   string
	consumer *keyhash.Key
	// foundAs has the consumers as which the versions in force find the caller. It replaces
	// consumer if consumer is nil.
	foundAs []foundIn
	// keys are the partition keys that are known to be the caller's.
	keys []bucketKey
}

// BannedBySet is the reason of a ban by the policy set itself.
const BannedBySet = "banned.client_ips of the policy set"

// standingOf returns the orders, bans, bypasses and penalties that decide about a caller before a
// limit or in its place, in the order in which requests meet them. complete is false if a part
// could not be read.
func (s *server) standingOf(ctx context.Context, who subject) (all []gen.Standing, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	all = s.ordersAbout(who, true)
	bans := s.bansOf(who)
	special, complete := s.specialOf(ctx, who)
	all = append(append(all, bans...), special...)
	all = append(all, s.penaltiesOf(who)...)
	s.markLifted(all, who)
	return append(all, s.ordersAbout(who, false)...), complete
}

// markLifted marks the bans and penalties that refuse nothing meanwhile.
func (s *server) markLifted(all []gen.Standing, who subject) {
	off := s.allOff()
	for i := range all {
		one := &all[i]
		switch {
		case one.What != gen.StandingWhatBan && one.What != gen.StandingWhatPenalty:
		case off:
			one.Lifted = true
		default:
			at := slices.IndexFunc(who.keys, func(k bucketKey) bool { return k.policy.Name == one.Policy })
			one.Lifted = at >= 0 && s.isOff(who.keys[at])
		}
	}
}

// allOff reports whether an order switches everything off, which lifts bans, too.
func (s *server) allOff() bool {
	return slices.ContainsFunc(s.switchedOff(), func(o enforcement.Order) bool {
		return o.Policy == "" && o.Tier == "" && o.Percent == 100 && o.State == enforcement.Off
	})
}

// isOff reports whether the policy of a key is switched off for it: then nothing looks for its ban.
func (s *server) isOff(k bucketKey) bool {
	return s.enforcedFor(k.policy, "", k.partition.Share()) == policy.EnforcedOff
}

// ordersAbout returns the orders in force that switch limits of the caller off or into shadow. If
// everything is true, it returns only the order that switches everything off, which lifts bans too.
// Otherwise it returns the other orders.
func (s *server) ordersAbout(who subject, everything bool) (all []gen.Standing) {
	for _, o := range s.switchedOff() {
		lifts := o.Policy == "" && o.Tier == "" && o.Percent == 100 && o.State == enforcement.Off
		other := who.policy != "" && o.Policy != "" && o.Policy != who.policy
		if lifts != everything || other {
			continue
		}
		since := o.Since
		all = append(all, gen.Standing{What: gen.StandingWhat(o.State), Policy: o.Policy, Tier: o.Tier,
			Reason: o.Reason, Until: o.Expires, Since: &since, By: o.By, Percent: o.Percent % 100})
	}
	return all
}

// switchedOff returns the orders in force that take limits out of force.
func (s *server) switchedOff() []enforcement.Order {
	return slices.DeleteFunc(s.ordersInForce(), func(o enforcement.Order) bool {
		return o.State == enforcement.Enforce
	})
}

// ordersInForce returns the orders in force.
func (s *server) ordersInForce() (orders []enforcement.Order) {
	held, _, err := s.config.Enforcement.Held()
	if err != nil {
		return nil
	}
	now := s.config.Now()
	return slices.DeleteFunc(slices.Clone(held.Orders.List), func(o enforcement.Order) bool {
		return !o.InForce(now)
	})
}

// bansOf returns the bans of the caller's partition keys.
func (s *server) bansOf(who subject) (all []gen.Standing) {
	for _, k := range who.keys {
		for _, hash := range k.hashes() {
			if b := s.config.Enforcement.Banned(hash); b != nil {
				since := b.Since
				all = append(all, gen.Standing{What: gen.StandingWhatBan, Policy: k.policy.Name, Key: hash,
					Reason: b.Reason, Until: b.Expires, Since: &since, By: b.By})
			}
		}
		all = append(all, s.bannedBySets(k)...)
	}
	return all
}

// bannedBySets returns the bans of the key's address by the versions in force.
func (s *server) bannedBySets(k bucketKey) (all []gen.Standing) {
	active, _ := s.config.Policies.Active()
	for i, part := range k.policy.Partition {
		if part.Kind != policy.PartClientIP {
			continue
		}
		by := func(c *policies.Compiled) bool { return c != nil && hasAddress(c.Set.Banned, k.values[i].Text) }
		one := gen.Standing{What: gen.StandingWhatBan, Reason: BannedBySet}
		switch current, draft := by(active.Current), by(active.Draft); {
		case current && !draft && active.Draft != nil:
			one.Version = active.Current.Version.Number
		case draft && !current:
			one.Version = active.Draft.Version.Number
		case !current:
			continue
		}
		all = append(all, one)
	}
	return all
}

// hasAddress reports whether one of the ranges has an address, as partitions have it.
func hasAddress(ranges []policy.Range, address []byte) bool {
	addr, ok := netip.AddrFromSlice(address)
	if !ok {
		return false
	}
	a, _, ok := ipaddr.Parse(addr.String())
	return ok && policy.Contains(ranges, a)
}

// consumers returns the consumers as which the caller is known; empty if the caller is unknown.
func (who subject) consumers() []foundIn {
	if who.consumer != nil {
		return []foundIn{{Key: *who.consumer}}
	}
	return who.foundAs
}

// specialOf returns the bans and the bypasses of the caller's consumers.
func (s *server) specialOf(ctx context.Context, who subject) (all []gen.Standing, complete bool) {
	var keys []keyhash.Key
	for _, one := range who.consumers() {
		keys = append(keys, one.Key)
	}
	if len(keys) == 0 {
		return nil, true
	}
	known, err := s.config.Consumers.Known(ctx, keys)
	if err != nil {
		return nil, false
	}
	for _, one := range who.consumers() {
		all = append(all, marksOf(known[one.Key].Record.At(s.config.Now()), one.version)...)
	}
	return all, true
}

// marksOf returns the ban and the bypass of a record. version is the version that finds the
// consumer.
func marksOf(record consumers.Record, version uint64) (all []gen.Standing) {
	for _, one := range []struct {
		what gen.StandingWhat
		mark *consumers.Mark
	}{{gen.StandingWhatBan, record.Banned}, {gen.StandingWhatBypass, record.Bypass}} {
		if one.mark == nil {
			continue
		}
		is := gen.Standing{What: one.what, Reason: one.mark.Reason, Version: version}
		if until := one.mark.Expires; !until.IsZero() {
			is.Until = &until
		}
		all = append(all, is)
	}
	return all
}

// penaltiesOf returns the caller's penalties.
func (s *server) penaltiesOf(who subject) (all []gen.Standing) {
	const most = 16
	seen := map[keyhash.Key]bool{}
	add := func(q penalties.Query) {
		list, _ := s.config.Penalties.List(q, most)
		for i := range list {
			r := &list[i]
			if seen[r.Key] {
				continue
			}
			seen[r.Key] = true
			until, since := time.UnixMilli(r.Until).UTC(), r.Since
			all = append(all, gen.Standing{What: gen.StandingWhatPenalty, Policy: r.Policy, Key: r.Caller().String(),
				Version: r.Version, Level: r.Level, Until: &until, Since: &since, Shadow: r.Shadow})
		}
	}
	for _, one := range who.consumers() {
		add(penalties.Query{Consumer: one.Key.String()})
	}
	for _, k := range who.keys {
		if keys, err := s.penaltyKeysOf(k); err == nil {
			add(penalties.Query{Keys: keys})
		}
	}
	return all
}

// keysOf returns the keys of a consumer under all policies that count by consumer alone.
func (s *server) keysOf(id, source string) (keys []bucketKey, err error) {
	active, _ := s.config.Policies.Active()
	if active.Current == nil {
		return nil, nil
	}
	for _, name := range namesInForce(active.Current, active.Draft) {
		byConsumer := false
		_ = s.eachNamed(name, func(_ *policies.Compiled, p *policy.Policy) {
			byConsumer = byConsumer || len(p.Partition) == 1 && p.Partition[0].Kind == policy.PartConsumer
		})
		if !byConsumer {
			continue
		}
		k, err := s.findKey(name, gen.GetKeyParams{Partition: []string{"consumer:" + id}, Source: source})
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}
