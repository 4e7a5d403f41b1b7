package api

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// ListBans lists the bans of partition keys.
func (s *server) ListBans(context.Context, gen.ListBansRequestObject) (gen.ListBansResponseObject, error) {
	bans, durable, err := s.config.Enforcement.BansInForce()
	if err != nil {
		return nil, err
	}
	return gen.ListBans200JSONResponse{KeyBansJSONResponse: s.bansAnswer(bans, durable)}, nil
}

// EndBan lifts the bans of a hash: the hash of a partition key or of a consumer.
func (s *server) EndBan(ctx context.Context, r gen.EndBanRequestObject) (gen.EndBanResponseObject, error) {
	lifted, durable, err := s.config.Enforcement.Unban(ctx, []string{r.Key}, newEntry(ctx, "key.unban", ""))
	if errors.Is(err, enforcement.ErrNotBanned) && s.config.Consumers != nil {
		ban, err := s.unbanConsumer(ctx, r.Key)
		if err != nil {
			return nil, storeFailure(err)
		}
		answer := s.bansAnswer(nil, true)
		answer.Body.Bans = append(answer.Body.Bans, ban)
		return gen.EndBan200JSONResponse{KeyBansJSONResponse: answer}, nil
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.EndBan200JSONResponse{KeyBansJSONResponse: s.bansAnswer(lifted, durable)}, nil
}

// unbanAttempts is how often the end of a consumer's ban is tried again because another change was
// faster.
const unbanAttempts = 5

// unbanConsumer lifts the ban of the consumer with a hash, and leaves the rest of its record as it
// is. A consumer of whom nothing is left is forgotten.
func (s *server) unbanConsumer(ctx context.Context, hash string) (ban gen.ListedBan, err error) {
	key, err := keyhash.Parse(hash)
	if err != nil {
		return ban, err
	}
	for range unbanAttempts {
		var record consumers.Record
		record, err = s.config.Consumers.Get(ctx, key)
		if errors.Is(err, consumers.ErrNotFound) || err == nil && record.Banned == nil {
			return ban, enforcement.ErrNotBanned
		}
		if err != nil {
			return ban, err
		}
		ban = gen.ListedBan{Key: hash, Reason: record.Banned.Reason, Since: record.Updated, By: record.By}
		if until := record.Banned.Expires; !until.IsZero() {
			ban.Expires = &until
		}
		err = s.storeUnbanned(ctx, key, record)
		if !errors.Is(err, errs.Conflict) && !errors.Is(err, consumers.ErrNotFound) {
			return ban, err
		}
	}
	return ban, explainConflict(err, "others have changed the consumer at each attempt; try again")
}

// storeUnbanned stores a consumer's record without its ban, or removes it if nothing else is in it.
func (s *server) storeUnbanned(ctx context.Context, key keyhash.Key, record consumers.Record) error {
	w, action := consumers.Write{Key: key, Expected: record.Revision}, "consumer.delete"
	record.Banned, record.By = nil, callerOf(ctx).name
	if record.Tier != "" || record.Bypass != nil || len(record.Overrides) > 0 {
		w.Record, action = &record, "consumer.put"
	}
	_, err := s.config.Consumers.Write(ctx, consumers.Changes{Writes: []consumers.Write{w}, Sets: s.setsInForce(),
		Entry: newEntry(ctx, action, consumerResource(key))})
	return err
}

func (s *server) bansAnswer(bans []enforcement.Ban, durable bool) (answer gen.KeyBansJSONResponse) {
	answer.Headers.CacheControl = "no-store"
	answer.Body = gen.KeyBans{Bans: []gen.ListedBan{}, Durable: durable}
	for i := range bans {
		b := &bans[i]
		answer.Body.Bans = append(answer.Body.Bans, gen.ListedBan{Policy: b.Policy, Key: b.Key, Reason: b.Reason,
			Expires: b.Expires, Since: b.Since, By: b.By, Lifted: s.refusesNothing(b)})
	}
	return answer
}

// refusesNothing reports whether nothing looks at the keys of a ban's policy.
func (s *server) refusesNothing(b *enforcement.Ban) bool {
	key, err := keyhash.Parse(b.Key)
	active, _ := s.config.Policies.Active()
	if active.Current == nil || err != nil {
		return false
	}
	for _, by := range []*policies.Compiled{active.Current, active.Draft} {
		if by == nil {
			continue
		}
		p, has := by.Policy(b.Policy)
		if has && s.enforcedFor(p, "", int(match.ShareOf(key))) != policy.EnforcedOff {
			return s.allOff()
		}
	}
	return true
}
