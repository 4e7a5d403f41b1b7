package api

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
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

// errBanOfConsumer keeps an operator from taking a listed hash for one that is not banned.
var errBanOfConsumer = errs.New(errs.NotFound, "the hash is that of a consumer",
	"this is the hash of a consumer: end its ban by its name, with weir consumers unban")

// EndBan lifts the bans of a hash.
func (s *server) EndBan(ctx context.Context, r gen.EndBanRequestObject) (gen.EndBanResponseObject, error) {
	lifted, durable, err := s.config.Enforcement.Unban(ctx, []string{r.Key}, entry(ctx, "key.unban", ""))
	if errors.Is(err, enforcement.ErrNotBanned) && s.isBannedConsumer(r.Key) {
		return nil, errBanOfConsumer
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.EndBan200JSONResponse{KeyBansJSONResponse: s.bansAnswer(lifted, durable)}, nil
}

// isBannedConsumer reports whether this replica knows a banned consumer by a hash.
func (s *server) isBannedConsumer(hash string) bool {
	key, err := keyhash.Parse(hash)
	if err != nil || s.config.Consumers == nil {
		return false
	}
	held, known := s.config.Consumers.Held(key)
	return known && held.Banned != nil
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
