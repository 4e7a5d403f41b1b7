package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// answerWithoutBuckets returns the answer about the key without its buckets.
func (s *server) answerWithoutBuckets(k bucketKey) (answer gen.OneKeyJSONResponse) {
	answer.Headers.CacheControl = "no-store"
	answer.Body = gen.Key{Policy: k.policy.Name, Key: k.hash, Share: k.partition.Share(), Where: gen.KeyWhereStore,
		Buckets: []gen.Bucket{}}
	if k.areLocal() {
		answer.Body.Where, answer.Body.Complete = gen.KeyWhereNodes, true
	}
	s.describeBan(&answer.Body, k)
	return answer
}

// answerWithBuckets returns the answer about the key with the levels of its buckets.
func (s *server) answerWithBuckets(ctx context.Context, k bucketKey) (answer gen.OneKeyJSONResponse, err error) {
	answer = s.answerWithoutBuckets(k)
	if answer.Body.Complete {
		return answer, nil
	}
	places, err := s.placesOfKey(ctx, k)
	for i := 0; i < len(places) && err == nil; i++ {
		if !places[i].isLocal() {
			var b gen.Bucket
			b, err = s.readBucket(ctx, places[i], lease.Change{}, audit.Entry{})
			answer.Body.Buckets = append(answer.Body.Buckets, b)
		}
	}
	if answer.Body.Complete = err == nil; err != nil {
		answer.Body.Buckets = []gen.Bucket{}
	}
	return answer, err
}

// adjustKey changes all buckets of a key. The audit has one entry of that, whatever it changes.
func (s *server) adjustKey(
	ctx context.Context, k bucketKey, c lease.Change, e audit.Entry,
) (answer gen.OneKeyJSONResponse, err error) {
	places, err := s.placesOfKey(ctx, k)
	if err != nil {
		return answer, err
	}
	once := slices.DeleteFunc(eachOnce(places), func(i int) bool { return !places[i].canChange(c) })
	if len(once) == 0 {
		return answer, errUnchangeable(k, places)
	}
	done, err := s.config.Enforcement.ReserveFree(len(once))
	if err != nil {
		return answer, err
	}
	defer done()
	buckets, stored := make([]gen.Bucket, len(places)), e
	var changed []place
	for _, i := range once {
		if !places[i].isLocal() {
			if buckets[i], err = s.readBucket(ctx, places[i], c, stored); err != nil {
				break
			}
			stored = audit.Entry{By: e.By}
		}
		changed = append(changed, places[i])
	}
	if len(changed) > 0 {
		if err != nil {
			err = changedInPart(err, c, placesAt(places, once), changed)
		}
		freed := s.config.Enforcement.Free(ctx, bucketsOf(changed), c.Reset, stored)
		err = cmp.Or(err, freed)
	}
	answer = s.answerWithoutBuckets(k)
	for i := 0; i < len(places) && err == nil; i++ {
		if places[i].isLocal() {
			continue
		}
		if !slices.Contains(once, i) { // The same bucket, as a caller of another tier finds it.
			buckets[i], err = s.readBucket(ctx, places[i], lease.Change{}, audit.Entry{})
		}
		answer.Body.Buckets = append(answer.Body.Buckets, buckets[i])
	}
	answer.Body.Complete = err == nil
	return answer, err
}

// bucketsOf returns the buckets of places, each once.
func bucketsOf(places []place) (all []keyhash.Key) {
	for _, at := range places {
		if !slices.Contains(all, at.Bucket) {
			all = append(all, at.Bucket)
		}
	}
	return all
}

// errUnchangeable returns the error for a key if the change fits none of its buckets.
func errUnchangeable(k bucketKey, places []place) error {
	if slices.ContainsFunc(places, func(at place) bool { return at.canChange(lease.Change{Reset: true}) }) {
		return &failure{code: errs.LocalPolicy,
			detail: "the buckets of a local policy are in each Envoy alone: reset fills them"}
	}
	return badRequest("policy %s has no bucket for this key that can be filled: requests in flight end by "+
		"themselves, and a quota of 0 refuses all", k.policy.Name)
}

// changedInPart returns the error for a change that reached only some buckets of a key. It names
// these buckets and the effect of the same change on them if it is made again.
func changedInPart(cause error, c lease.Change, all, changed []place) error {
	names := ""
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
		"%d of %d buckets %s been changed (%s), then %s; %s", len(changed), len(all), have, names,
		storeFailureText(cause), again)}
}

// readBucket reads one bucket of a key, or changes it. It does not change the nodes' requests in
// flight.
func (s *server) readBucket(ctx context.Context, at place, c lease.Change, e audit.Entry) (b gen.Bucket, err error) {
	b, _, err = s.bucketWith(ctx, at, c, e)
	return b, err
}

// bucketWith does the same as bucket and also returns the store's answer, which is empty for
// requests in flight.
func (s *server) bucketWith(
	ctx context.Context, at place, c lease.Change, e audit.Entry,
) (b gen.Bucket, held lease.Holding, err error) {
	b = gen.Bucket{
		Bucket: at.Bucket.String(), Tier: at.tier, Version: at.version, Limit: policies.LimitText(at.limit),
		Burst: at.limit.Params.Burst,
	}
	if at.limit.InFlight {
		permits, err := s.config.Leases.Holders(ctx, at.Policy, at.limit, at.Bucket)
		describePermits(&b, permits)
		return b, held, err
	}
	if at.limit.Suspended() { // It holds nothing, and its earlier count stays.
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
		active, _ := s.config.Policies.Active()
		if k.Twin != nil || active.Has(&k.By.Version) {
			return held, err
		}
		k.By = active.Current
	}
}

func (s *server) describeBan(k *gen.Key, of bucketKey) {
	_, k.Durable, _ = s.config.Enforcement.Held()
	for _, hash := range of.hashes() {
		if b := s.config.Enforcement.Banned(hash); b != nil && k.Ban == nil {
			k.Ban = &gen.KeyBan{Lifted: s.allOff() || s.isOff(of), Reason: b.Reason, Expires: b.Expires,
				Since: b.Since, By: b.By}
		}
	}
}

// GetKey answers with the levels of a key's buckets.
func (s *server) GetKey(ctx context.Context, r gen.GetKeyRequestObject) (gen.GetKeyResponseObject, error) {
	k, err := s.findKey(r.Policy, r.Params)
	if err != nil {
		return nil, err
	}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	answer, err := s.answerWithBuckets(timed, k)
	if err != nil && isExplained(err) {
		return nil, storeFailure(err)
	}
	if err != nil { // The key, its share and its ban are held, and the levels of its buckets are the store's.
		s.noteHeld(ctx, err, s.config.Hub.Followed())
	}
	return gen.GetKey200JSONResponse{OneKeyJSONResponse: answer}, nil
}

// ResetKey fills the buckets of a key, in the store and in the nodes.
func (s *server) ResetKey(ctx context.Context, r gen.ResetKeyRequestObject) (gen.ResetKeyResponseObject, error) {
	k, e, err := s.keyChange(ctx, "key.reset", r.Policy, gen.GetKeyParams(r.Params), r.Body.Reason)
	if err != nil {
		return nil, err
	}
	answer, err := s.adjustKey(ctx, k, lease.Change{Reset: true}, e)
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.ResetKey200JSONResponse{OneKeyJSONResponse: answer}, nil
}

// GrantKey gives tokens to the buckets of a key.
func (s *server) GrantKey(ctx context.Context, r gen.GrantKeyRequestObject) (gen.GrantKeyResponseObject, error) {
	k, e, err := s.keyChange(ctx, "key.grant", r.Policy, gen.GetKeyParams(r.Params), r.Body.Reason)
	if err != nil {
		return nil, err
	}
	e.After = audit.Value(map[string]int64{"tokens": r.Body.Tokens})
	answer, err := s.adjustKey(ctx, k, lease.Change{Give: r.Body.Tokens}, e)
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
	ban := enforcement.Ban{Policy: k.policy.Name, Reason: r.Body.Reason}
	if r.Body.Expires != nil {
		until := r.Body.Expires.UTC()
		ban.Expires = &until
		if !until.After(s.config.Now()) {
			return nil, badRequest("expires_at (weir --until) has passed: it is %s now",
				s.config.Now().UTC().Format(time.RFC3339))
		}
	}
	if _, err := s.config.Enforcement.Ban(ctx, ban, k.hashes(), e); err != nil {
		return nil, storeFailure(err)
	}
	return gen.BanKey200JSONResponse{OneKeyJSONResponse: s.answerAfterBan(ctx, k)}, nil
}

// UnbanKey lifts a ban.
func (s *server) UnbanKey(ctx context.Context, r gen.UnbanKeyRequestObject) (gen.UnbanKeyResponseObject, error) {
	k, err := s.findKey(r.Policy, gen.GetKeyParams(r.Params))
	if err != nil {
		return nil, err
	}
	if _, _, err := s.config.Enforcement.Unban(ctx, k.hashes(), newEntry(ctx, "key.unban", "")); err != nil {
		return nil, storeFailure(err)
	}
	return gen.UnbanKey200JSONResponse{OneKeyJSONResponse: s.answerAfterBan(ctx, k)}, nil
}

// answerAfterBan returns the answer about a key after a change of its ban. If the store is away,
// the answer has no buckets: bans work without the store.
func (s *server) answerAfterBan(ctx context.Context, k bucketKey) gen.OneKeyJSONResponse {
	ctx, cancel := context.WithTimeout(ctx, touchPatience)
	defer cancel()
	answer, _ := s.answerWithBuckets(ctx, k)
	return answer
}

// keyChange finds the key to change and makes the audit entry.
func (s *server) keyChange(
	ctx context.Context, action, name string, params gen.GetKeyParams, reason string,
) (k bucketKey, e audit.Entry, err error) {
	if why := badReason(reason); why != "" {
		return k, e, badRequest("reason %s", why)
	}
	k, err = s.findKey(name, params)
	if err != nil {
		return k, e, err
	}
	e = newEntry(ctx, action, keyResource(k))
	e.Reason = reason
	s.config.Log.Warn("key changed", "id", e.RequestID, "author", e.By, "action", action, "policy", k.policy.Name,
		"key", k.hash, "reason", reason)
	return k, e, nil
}
