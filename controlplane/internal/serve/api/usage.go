package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// maxUsage is the largest number of limits that an answer lists.
const maxUsage = 32

// sender is a consumer, as its requests say it.
type sender struct {
	source policy.Source
	value  string
}

// asker is the caller who asks for its remaining quota.
type asker struct {
	sender // as it is in the first version
	// first is the version in force that finds the caller. The version of the nodes outside the
	// rollout has priority. by has, for each version that finds the caller, the caller as it finds
	// it.
	first   *policies.Compiled
	by      map[*policies.Compiled]sender
	foundAs []foundIn
	tiers   map[*policies.Compiled]string // for the versions with tiers
}

// foundIn is a consumer and the version in force that finds it. version is 0 if both versions find
// this consumer, or if only one version is in force.
type foundIn struct {
	keyhash.Key
	version uint64
}

// hasBucketTier reports whether the caller's tier has a bucket, which both versions in force may
// have. It notes the version if the caller has that tier in one of two.
func (a *asker) hasBucketTier(at *place) bool {
	if at.tier == "" || at.version != 0 {
		return at.tier == "" || at.tier == a.tiers[at.By]
	}
	var by []uint64
	for version, tier := range a.tiers {
		if tier == at.tier {
			by = append(by, version.Version.Number)
		}
	}
	if len(by) == 1 && len(a.tiers) > 1 {
		at.version = by[0]
	}
	return len(by) > 0
}

// GetUsage answers with the caller's remaining quota. Every caller with a key may ask. An unknown
// key looks like an unused key, so that the answer reveals nothing else.
func (s *server) GetUsage(ctx context.Context, _ gen.GetUsageRequestObject) (gen.GetUsageResponseObject, error) {
	// Identify the caller.
	secret, current, who, err := s.identifyAsker(ctx)
	if err != nil {
		return nil, err
	}
	if who.tiers, err = s.tiersOf(ctx, secret, who); err != nil {
		return nil, storeFailure(err)
	}
	answer := gen.GetUsage200JSONResponse{Body: gen.Usage{Limits: []gen.UsedLimit{}, Tier: who.tiers[who.first]},
		Headers: gen.GetUsage200ResponseHeaders{CacheControl: "no-store"}}
	// Read the buckets of the caller's keys that are in the store.
	about := subject{foundAs: who.foundAs}
	for _, k := range s.keysOfAsker(secret, current, who) {
		about.keys = append(about.keys, k)
		places, err := s.placesOfKey(ctx, k)
		if err != nil {
			return nil, storeFailure(err)
		}
		for _, at := range places {
			if at.isLocal() || at.Policy.Enforced == policy.EnforcedOff ||
				!who.hasBucketTier(&at) || len(answer.Body.Limits) == maxUsage {
				continue
			}
			held, err := s.readBucket(ctx, at, lease.Change{}, audit.Entry{})
			if err != nil {
				return nil, storeFailure(err)
			}
			if held.Level < held.Burst {
				s.bounds.known.Add(at.Consumer.String())
			}
			answer.Body.Limits = append(answer.Body.Limits,
				gen.UsedLimit{Policy: k.policy.Name, Limit: held.Limit, Version: held.Version, Quota: held.Burst,
					Remaining:        held.Level,
					FullAfterSeconds: held.FullAfterSeconds, Settles: held.Settles, Owed: held.Owed,
					AdmitsAfterSeconds: held.AdmitsAfterSeconds})
		}
	}
	answer.Body.Standing = s.standingForCallers(ctx, about)
	return answer, nil
}

// identifyAsker identifies the caller who asks for its remaining quota, and checks whether it may.
func (s *server) identifyAsker(ctx context.Context) (secret [16]byte, by *policies.Compiled, who asker, err error) {
	by, _ = s.config.Policies.Current()
	secret, err = s.config.Hub.Secret()
	switch {
	case err != nil:
	case by == nil && s.config.Hub.Ready() != nil:
		err = push.ErrNotReady
	default:
		active, _ := s.config.Policies.Active()
		who, err = askerOf(secret, by, active.Draft, callerOf(ctx).header)
	}
	if tooMany := s.admitUsage(callerOf(ctx).from, who.foundAs); tooMany != nil {
		err = tooMany
	}
	return secret, by, who, err
}

// standingForCallers returns the result of standingOf without authors, reasons and keys: they are
// for operators.
func (s *server) standingForCallers(ctx context.Context, about subject) []gen.Standing {
	all, _ := s.standingOf(ctx, about)
	for i := range all {
		one := &all[i]
		one.By, one.Reason, one.Key = "", "", ""
	}
	return all
}

// askerOf finds who asks, as each version does that can. Both may be nil.
func askerOf(secret [16]byte, current, draft *policies.Compiled, header http.Header) (who asker, err error) {
	who.by = map[*policies.Compiled]sender{}
	var places []string
	asked := false
	for _, version := range []*policies.Compiled{current, draft} {
		if version == nil || len(version.Set.Identity.Consumer) == 0 {
			continue
		}
		asked = true
		found, ok, wrong := senderOf(version.Set, header)
		if ok {
			who.addVersion(secret, version, found, draft != nil)
		}
		err = cmp.Or(err, wrong)
		places = appendNew(places, version.Set.Identity.Consumer)
	}
	switch {
	case who.first != nil:
		return who, nil
	case !asked:
		return who, errNoConsumers
	case err == nil:
		err = badRequest("send the key that your requests have, in one of: %s", strings.Join(places, " "))
	}
	return who, err
}

// addVersion notes the caller as a version finds it.
func (a *asker) addVersion(secret [16]byte, by *policies.Compiled, found sender, rolledOut bool) {
	a.by[by] = found
	if a.first == nil {
		a.first, a.sender = by, found
	}
	is := foundIn{Key: match.ConsumerKey(secret, found.source, found.value)}
	if len(a.foundAs) == 1 && a.foundAs[0].Key == is.Key {
		a.foundAs[0].version = 0
		return
	}
	if rolledOut {
		is.version = by.Version.Number
	}
	a.foundAs = append(a.foundAs, is)
}

// appendNew adds the headers and cookies among sources that are not yet in a list.
func appendNew(places []string, sources []policy.Source) []string {
	for _, source := range sources {
		sent := source.Kind == policy.SourceHeader || source.Kind == policy.SourceCookie
		if sent && !slices.Contains(places, source.String()) {
			places = append(places, source.String())
		}
	}
	return places
}

// senderOf identifies the caller by the first header or cookie of the policy set's sources that is
// present; false if none is present. Sources that only Envoy can verify do not count here.
func senderOf(set *policy.Set, header http.Header) (who sender, ok bool, err error) {
	for _, source := range set.Identity.Consumer {
		var values []string
		switch source.Kind {
		case policy.SourceHeader:
			values = header.Values(source.Name)
		case policy.SourceCookie:
			for _, c := range (&http.Request{Header: header}).CookiesNamed(source.Name) {
				values = append(values, c.Value)
			}
		default:
			continue
		}
		switch {
		case len(values) > 1 || len(values) == 1 && len(values[0]) > policy.MaxText:
			return who, false, badRequest("%s is given more than once, or is too long", source)
		case len(values) == 1:
			return sender{source: source, value: values[0]}, true, nil
		}
	}
	return who, false, nil
}

// tiersOf returns the asker's tiers in the versions that find it and have tiers.
func (s *server) tiersOf(
	ctx context.Context, secret [16]byte, who asker,
) (map[*policies.Compiled]string, error) {
	tiers := map[*policies.Compiled]string{}
	for by, found := range who.by {
		if len(by.Set.Tiers) == 0 {
			continue
		}
		tier, err := s.assignedTier(ctx, secret, by.Set, found)
		if err != nil {
			return nil, err
		}
		tiers[by] = by.Set.Tiers[tier]
	}
	return tiers, nil
}

// assignedTier returns the asker's tier if it is assigned or follows from the consumer's source,
// else the default tier.
func (s *server) assignedTier(ctx context.Context, secret [16]byte, set *policy.Set, who sender) (int, error) {
	for _, source := range set.Identity.Tier {
		tier := ""
		switch from, named := source.Found(); {
		case source.Kind == policy.SourceFound && from == who.source:
			tier = named
		case source.Kind == policy.SourceAssignment:
			record, err := s.config.Consumers.Get(ctx, match.ConsumerKey(secret, who.source, who.value))
			if err != nil && !errors.Is(err, consumers.ErrNotFound) {
				return set.Identity.DefaultTier, err
			}
			tier = record.Tier
		}
		if at := slices.Index(set.Tiers, tier); at >= 0 {
			return at, nil
		}
	}
	return set.Identity.DefaultTier, nil
}

// keysOfAsker returns the asker's keys of the policies in force that count by consumer alone.
func (s *server) keysOfAsker(secret [16]byte, current *policies.Compiled, who asker) (keys []bucketKey) {
	active, _ := s.config.Policies.Active()
	for _, name := range namesInForce(current, active.Draft) {
		var found []bucketKey
		for _, by := range []*policies.Compiled{current, active.Draft} {
			if _, finds := who.by[by]; !finds {
				continue
			}
			if p, ok := by.Policy(name); ok {
				if k, ok := keyOf(secret, by, p, who); ok {
					found = append(found, k)
				}
			}
		}
		if len(found) > 0 {
			keys = append(keys, s.joinKeys(found))
		}
	}
	return keys
}

// namesInForce returns the names of the policies of both versions in force, each once. Draft may be
// nil.
func namesInForce(current, draft *policies.Compiled) (names []string) {
	names = policyNames(current)
	for _, name := range policyNames(draft) {
		if _, both := current.Policy(name); !both {
			names = append(names, name)
		}
	}
	return names
}

// keyOf returns the asker's key of a policy; false if the policy does not count by consumer alone.
func keyOf(secret [16]byte, by *policies.Compiled, p *policy.Policy, who asker) (k bucketKey, ok bool) {
	var values []match.Value
	for _, part := range p.Partition {
		switch part.Kind {
		case policy.PartConsumer:
			values, ok = append(values, match.Value{Text: []byte(who.by[by].value), Source: who.by[by].source}), true
		case policy.PartTier:
			values = append(values, match.Value{Text: []byte(who.tiers[by])})
		default:
			return k, false
		}
	}
	return newKey(secret, by, p, values), ok
}
