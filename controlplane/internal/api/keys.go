package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// bucketKey is the partition key of a policy that a request means.
type bucketKey struct {
	by        *policies.Compiled
	policy    *policy.Policy
	partition match.Partition
	// person is the consumer whose key it is; nil if the partition does not go by consumers.
	person *keyhash.Key
	// values are those of the partition, and hash is the key as it is known.
	values []match.Value
	hash   string
}

func keyResource(k bucketKey) string { return "keys/" + k.policy.Name + "/" + k.hash }

// policyNamed finds a policy of the policy set in force.
func (s *server) policyNamed(name string) (*policies.Compiled, *policy.Policy, error) {
	current, _ := s.config.Policies.Current()
	if err := s.unread(); current == nil && err != nil {
		return nil, nil, err
	} else if current == nil {
		return nil, nil, noPolicy(nil, name)
	}
	p, ok := current.Policy(name)
	if !ok {
		return nil, nil, noPolicy(current, name)
	}
	return current, p, nil
}

// key finds out which partition key is meant.
func (s *server) key(name string, params gen.GetKeyParams) (k bucketKey, err error) {
	current, p, err := s.policyNamed(name)
	if err != nil {
		return k, err
	}
	secret, err := s.config.Hub.Secret()
	if err != nil {
		return k, err
	}
	values, err := partitionValues(current.Set, p, params.Partition, params.Source)
	if err != nil {
		return k, err
	}
	return newKey(secret, current, p, values), nil
}

// newKey is the key of requests that have these values for the parts of the policy's partition.
func newKey(secret [16]byte, by *policies.Compiled, p *policy.Policy, values []match.Value) bucketKey {
	k := bucketKey{by: by, policy: p, partition: match.NewPartition(secret, by.Set, p, values),
		person: personOf(secret, p, values), values: values}
	hash := k.partition.Key()
	k.hash = hash.String()
	return k
}

// personOf is the consumer among the values of a partition, nil if there is none.
func personOf(secret [16]byte, p *policy.Policy, values []match.Value) *keyhash.Key {
	for i, part := range p.Partition {
		if v := values[i]; part.Kind == policy.PartConsumer && !v.Absent {
			key := match.ConsumerKey(secret, v.Source, string(v.Text))
			return (*keyhash.Key)(&key)
		}
	}
	return nil
}

// adjust looks at all buckets of a key, or changes them.
func (s *server) adjust(
	ctx context.Context, k bucketKey, c lease.Change, e audit.Entry,
) (answer gen.OneKeyJSONResponse, err error) {
	answer.Headers.CacheControl = "no-store"
	answer.Body = gen.Key{Policy: k.policy.Name, Key: k.hash, Share: k.partition.Share(), Where: gen.KeyWhereStore,
		Buckets: []gen.Bucket{}}
	if k.policy.Mode == policy.ModeLocal {
		answer.Body.Where = gen.KeyWhereNodes
		s.describeBan(&answer.Body)
		return answer, nil
	}
	places, err := s.places(ctx, k)
	if err != nil {
		return answer, err
	}
	buckets, once := make([]gen.Bucket, len(places)), eachOnce(places)
	if c != (lease.Change{}) {
		if err := s.config.Enforcement.CanFree(len(once)); err != nil {
			return answer, err
		}
	}
	var changed []place
	for _, i := range once {
		if buckets[i], err = s.bucket(ctx, places[i], c, e); err != nil {
			break
		}
		if !places[i].limit.InFlight {
			changed = append(changed, places[i])
		}
	}
	if c != (lease.Change{}) && len(changed) > 0 {
		if err != nil {
			err = changedInPart(err, c, placesAt(places, once), changed)
		}
		var all []keyhash.Key
		for _, at := range changed {
			all = append(all, at.Bucket)
		}
		freed := s.config.Enforcement.Free(ctx, all, c.Reset, audit.Entry{By: e.By})
		err = cmp.Or(err, freed)
	}
	for i := 0; i < len(places) && err == nil; i++ {
		if !slices.Contains(once, i) { // The same bucket, as a caller of another tier finds it.
			buckets[i], err = s.bucket(ctx, places[i], lease.Change{}, audit.Entry{})
		}
	}
	answer.Body.Buckets = buckets
	s.describeBan(&answer.Body)
	return answer, err
}

// changedInPart is the failure to change all buckets of a key where some have been changed: which,
// and what the same change would do to them once more.
func changedInPart(cause error, c lease.Change, all, changed []place) error {
	count, names := 0, ""
	for _, at := range all {
		if !at.limit.InFlight {
			count++
		}
	}
	for i, at := range changed {
		if i > 0 {
			names += "; "
		}
		if at.tier != "" {
			names += at.tier + ", "
		}
		names += policies.LimitText(at.limit)
	}
	again := "to grant again gives these their tokens twice: look with weir keys get first"
	if c.Reset {
		again = "reset again, which is no harm to these"
	}
	have := "have"
	if len(changed) == 1 {
		have = "has"
	}
	return &failure{code: errs.StoreUnavailable, cause: cause, detail: fmt.Sprintf(
		"%d of %d buckets %s been changed (%s), then %s; %s", len(changed), count, have, names, failing(cause), again)}
}

// bucket looks at one bucket of a key, or changes it. What nodes may have in flight stays as it is.
func (s *server) bucket(ctx context.Context, at place, c lease.Change, e audit.Entry) (b gen.Bucket, err error) {
	b, _, err = s.bucketWith(ctx, at, c, e)
	return b, err
}

// bucketWith is bucket with what the store says beside it; for requests in flight that is nothing.
func (s *server) bucketWith(
	ctx context.Context, at place, c lease.Change, e audit.Entry,
) (b gen.Bucket, held lease.Holding, err error) {
	b = gen.Bucket{
		Bucket: at.Bucket.String(), Tier: at.tier, Limit: policies.LimitText(at.limit), Burst: at.limit.Params.Burst,
	}
	if at.limit.InFlight {
		permits, err := s.config.Leases.Holders(ctx, at.Policy, at.limit, at.Bucket)
		describePermits(&b, permits)
		return b, held, err
	}
	if at.limit.Suspended() { // It holds nothing, and what it was counted before stays as it is.
		b.Settles = settlesOf(at.Policy)
		return b, held, nil
	}
	held, err = s.adjustOne(ctx, at.Key, c, e)
	b.Level, b.Used, b.Leased, b.Given = held.Level, held.Used, held.Leased, held.Given
	b.Above = held.Above
	b.FullAfterSeconds = seconds(held.FullAfter)
	b.Settles = settlesOf(at.Policy)
	if b.Settles != nil {
		b.Owed, b.AdmitsAfterSeconds = held.Owed, seconds(held.AdmitsAfter)
	}
	return b, held, err
}

// settlesOf says how requests of a policy are charged whose cost is known later.
func settlesOf(p *policy.Policy) *policies.Settles { return policies.SettlesOf(p.Cost, p.Commit) }

func seconds(s quota.Span) float32 { return float32(float64(s) / float64(quota.Second)) }

// adjustOne makes a change anew while another replica has a newer policy set: this one will have it
// at once.
func (s *server) adjustOne(ctx context.Context, k leases.Key, c lease.Change, e audit.Entry) (lease.Holding, error) {
	for {
		held, err := s.config.Leases.Adjust(ctx, k, c, e)
		if !errors.Is(err, leases.ErrStale) {
			return held, err
		}
		if _, err := s.config.Policies.Refresh(ctx); err != nil {
			return held, err
		}
		current, _ := s.config.Policies.Current()
		if current.Version.Is(&k.By.Version) {
			return held, err
		}
		k.By = current
	}
}

func (s *server) describeBan(k *gen.Key) {
	_, k.Durable, _ = s.config.Enforcement.Held()
	if b := s.config.Enforcement.Banned(k.Key); b != nil {
		k.Ban = &gen.KeyBan{Reason: b.Reason, Expires: b.Expires, Since: b.Since, By: b.By}
	}
}

// GetKey answers with what the buckets of a key hold.
func (s *server) GetKey(ctx context.Context, r gen.GetKeyRequestObject) (gen.GetKeyResponseObject, error) {
	k, err := s.key(r.Policy, r.Params)
	if err != nil {
		return nil, err
	}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	answer, err := s.adjust(timed, k, lease.Change{}, audit.Entry{})
	if err != nil && explained(err) {
		return nil, storeFailure(err)
	}
	if err != nil { // The key, its share and its ban are held, and the levels of its buckets are the store's.
		answer.Body.Buckets = []gen.Bucket{}
		s.describeBan(&answer.Body)
		s.noteHeld(ctx, err, s.config.Hub.Followed())
	}
	return gen.GetKey200JSONResponse{OneKeyJSONResponse: answer}, nil
}

// ResetKey fills the buckets of a key, also those that the nodes have of it.
func (s *server) ResetKey(ctx context.Context, r gen.ResetKeyRequestObject) (gen.ResetKeyResponseObject, error) {
	k, e, err := s.keyChange(ctx, "key.reset", r.Policy, gen.GetKeyParams(r.Params), r.Body.Reason)
	if err != nil {
		return nil, err
	}
	var answer gen.OneKeyJSONResponse
	if k.policy.Mode == policy.ModeLocal {
		answer, err = s.resetNodes(ctx, k, e)
	} else {
		answer, err = s.adjust(ctx, k, lease.Change{Reset: true}, e)
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.ResetKey200JSONResponse{OneKeyJSONResponse: answer}, nil
}

// resetNodes fills the buckets that each node has by itself.
func (s *server) resetNodes(
	ctx context.Context, k bucketKey, e audit.Entry,
) (answer gen.OneKeyJSONResponse, err error) {
	places, err := s.places(ctx, k)
	if err != nil {
		return answer, err
	}
	var buckets []keyhash.Key
	for _, i := range eachOnce(places) {
		buckets = append(buckets, places[i].Bucket)
	}
	if err := s.config.Enforcement.CanFree(len(buckets)); err != nil {
		return answer, err
	}
	if err := s.config.Enforcement.Free(ctx, buckets, true, e); err != nil {
		return answer, err
	}
	return s.adjust(ctx, k, lease.Change{}, audit.Entry{})
}

// GrantKey gives tokens to the buckets of a key.
func (s *server) GrantKey(ctx context.Context, r gen.GrantKeyRequestObject) (gen.GrantKeyResponseObject, error) {
	k, e, err := s.keyChange(ctx, "key.grant", r.Policy, gen.GetKeyParams(r.Params), r.Body.Reason)
	if err != nil {
		return nil, err
	}
	if k.policy.Mode == policy.ModeLocal {
		return nil, &failure{code: errs.LocalPolicy,
			detail: "the buckets of a local policy are in each Envoy alone: reset fills them"}
	}
	e.After = audit.Value(map[string]int64{"tokens": r.Body.Tokens})
	answer, err := s.adjust(ctx, k, lease.Change{Give: r.Body.Tokens}, e)
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.GrantKey200JSONResponse{OneKeyJSONResponse: answer}, nil
}

// BanKey refuses all requests of a key.
func (s *server) BanKey(ctx context.Context, r gen.BanKeyRequestObject) (gen.BanKeyResponseObject, error) {
	k, e, err := s.keyChange(ctx, "key.ban", r.Policy, gen.GetKeyParams(r.Params), r.Body.Reason)
	if err != nil {
		return nil, err
	}
	ban := enforcement.Ban{Policy: k.policy.Name, Key: k.hash, Reason: r.Body.Reason}
	if r.Body.Expires != nil {
		until := r.Body.Expires.UTC()
		ban.Expires = &until
		if !until.After(s.config.Now()) {
			return nil, badRequest("expires_at has passed")
		}
	}
	if _, _, err := s.config.Enforcement.Ban(ctx, ban, e); err != nil {
		return nil, storeFailure(err)
	}
	return gen.BanKey200JSONResponse{OneKeyJSONResponse: s.standing(ctx, k)}, nil
}

// UnbanKey lifts a ban.
func (s *server) UnbanKey(ctx context.Context, r gen.UnbanKeyRequestObject) (gen.UnbanKeyResponseObject, error) {
	k, err := s.key(r.Policy, gen.GetKeyParams(r.Params))
	if err != nil {
		return nil, err
	}
	if _, err := s.config.Enforcement.Unban(ctx, k.hash, entry(ctx, "key.unban", keyResource(k))); err != nil {
		return nil, storeFailure(err)
	}
	return gen.UnbanKey200JSONResponse{OneKeyJSONResponse: s.standing(ctx, k)}, nil
}

// standing is the key after its ban was changed, without its buckets if the store is away: bans
// work without it.
func (s *server) standing(ctx context.Context, k bucketKey) gen.OneKeyJSONResponse {
	ctx, cancel := context.WithTimeout(ctx, touchPatience)
	defer cancel()
	answer, err := s.adjust(ctx, k, lease.Change{}, audit.Entry{})
	if err != nil {
		answer.Body.Buckets = []gen.Bucket{}
		s.describeBan(&answer.Body)
	}
	return answer
}

// keyChange finds out which key is to be changed, and what the audit says of that.
func (s *server) keyChange(
	ctx context.Context, action, name string, params gen.GetKeyParams, reason string,
) (k bucketKey, e audit.Entry, err error) {
	if why := badReason(reason); why != "" {
		return k, e, badRequest("reason %s", why)
	}
	k, err = s.key(name, params)
	if err != nil {
		return k, e, err
	}
	e = entry(ctx, action, keyResource(k))
	e.Reason = reason
	s.config.Log.Warn("key changed", "id", e.RequestID, "author", e.By, "action", action, "policy", k.policy.Name,
		"key", k.hash, "reason", reason)
	return k, e, nil
}
