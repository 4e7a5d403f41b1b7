package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// person is the consumer that a request names.
type person struct {
	// sets are the policy sets in force that find the consumer at the source. The set of the nodes
	// outside the rollout comes first.
	sets   []*policies.Compiled
	source string
	key    keyhash.Key
}

var errNoConsumers = &failure{code: errs.NoConsumers,
	detail: "the policy set names no identity.consumer, which says where requests say who they are"}

// person finds the consumer that a request names. source may be empty if there is only one.
func (s *server) person(id, source string) (p person, err error) {
	active, _ := s.config.Policies.Active()
	current := active.Current
	if err := s.unread(); current == nil && err != nil {
		return p, err
	}
	// Find the source in the versions in force. Both versions count if they find the same source.
	// Otherwise the current version counts, or the draft if only the draft has the source.
	found, err := policy.Source{}, error(errNoConsumers)
	for _, by := range []*policies.Compiled{active.Draft, active.Current} {
		if by == nil || len(by.Set.Identity.Consumer) == 0 {
			continue
		}
		switch one, wrong := consumerSource(by.Set, source); {
		case wrong == nil && err == nil && one == found:
			p.sets, current = []*policies.Compiled{by, current}, by
		case wrong == nil || err != nil:
			found, err, current, p.sets = one, wrong, by, []*policies.Compiled{by}
		}
	}
	if err != nil {
		return p, err
	}
	// Hash the consumer's id. An IPv6 address counts as its network.
	secret, err := s.config.Hub.Secret()
	if err != nil {
		return p, err
	}
	if id == "" || len(id) > policy.MaxText {
		return p, badRequest("the consumer must have 1 to %d bytes, percent-encoded in the path", policy.MaxText)
	}
	value := []byte(id)
	if found.Kind == policy.SourceClientIP {
		if value, err = clientKey("the consumer", id, current.Set.Identity.IPv6Prefix); err != nil {
			return p, err
		}
	}
	p.source, p.key = found.String(), match.ConsumerKey(secret, found, string(value))
	return p, nil
}

// setsInForce returns the policy sets in force. The set of the nodes outside the rollout comes
// first.
func (s *server) setsInForce() (sets []*policy.Set) {
	active, _ := s.config.Policies.Active()
	for _, by := range []*policies.Compiled{active.Current, active.Draft} {
		if by != nil {
			sets = append(sets, by.Set)
		}
	}
	return sets
}

// consumerSource returns the source that a caller named. The name may be empty if the set has only
// one source of consumers.
func consumerSource(set *policy.Set, source string) (found policy.Source, err error) {
	sources := set.Identity.Consumer
	var names []string
	for _, source := range sources {
		names = append(names, source.String())
	}
	all := strings.Join(names, ", ")
	if source == "" && len(sources) > 1 {
		return found, badRequest("there are several places to find a consumer: name the source (%s), "+
			"by ?source= or weir --source", all)
	}
	meant := slices.DeleteFunc(slices.Clone(sources),
		func(s policy.Source) bool { return source != "" && !isSource(s, source) })
	if len(meant) != 1 {
		return found, badRequest("source must be one of the policy set's: %s", all)
	}
	return meant[0], nil
}

// isSource reports whether a text means the source: as the policy set has it, or its name alone.
// Names of headers have no case.
func isSource(s policy.Source, text string) bool {
	full := s.String()
	if s.Kind == policy.SourceHeader {
		text = strings.ToLower(text)
	}
	return text == full || s.Name != "" && text == s.Name
}

func (s *server) oneConsumer(p person, r consumers.Record, stored bool) gen.OneConsumerJSONResponse {
	headers := gen.OneConsumerResponseHeaders{CacheControl: "no-cache"}
	if stored {
		tag := etag(r.Revision)
		headers.ETag = &tag
	}
	body := s.consumerAnswer(p.key, r)
	body.Source = p.source
	return gen.OneConsumerJSONResponse{Headers: headers, Body: body}
}

// ListConsumers lists the consumers that have a record.
func (s *server) ListConsumers(
	ctx context.Context, r gen.ListConsumersRequestObject,
) (gen.ListConsumersResponseObject, error) {
	size, token, err := page(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	// Ask the store. If it is away, answer the first page from memory.
	wanted := func(one consumers.Record) bool { return r.Params.Tier == "" || one.Tier == r.Params.Tier }
	asked := consumers.List{Token: token, Limit: size, Banned: r.Params.Banned}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	list, next, err := s.config.Consumers.List(timed, asked, wanted)
	if errors.Is(err, consumers.ErrToken) {
		return nil, errToken
	}
	if err != nil && token == "" {
		if held := s.config.Consumers.ListHeld(asked, wanted); held != nil {
			s.noteHeld(ctx, err, s.config.Hub.Followed())
			list, next, err = held, "", nil
		}
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	// An empty answer may come from a tier that does not exist.
	if len(list) == 0 && next == "" {
		if err := s.knowTiers(ctx, r.Params.Tier); err != nil {
			return nil, err
		}
	}
	answer := gen.ListConsumers200JSONResponse{Consumers: []gen.Consumer{}, Next: pageToken(next)}
	for _, one := range list {
		answer.Consumers = append(answer.Consumers, s.consumerAnswer(one.Key, one.Record))
	}
	return answer, nil
}

// GetConsumer answers with the record of a consumer.
func (s *server) GetConsumer(
	ctx context.Context, r gen.GetConsumerRequestObject,
) (gen.GetConsumerResponseObject, error) {
	p, err := s.person(r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	record, err := s.config.Consumers.Get(timed, p.key)
	if err != nil && !errors.Is(err, consumers.ErrNotFound) {
		held, known := s.config.Consumers.Held(p.key)
		if !known {
			return nil, &failure{code: errs.StoreUnavailable, cause: err, detail: failing(err) +
				"; this control plane has only the bans and recently read consumers in memory, and not this consumer"}
		}
		s.noteHeld(ctx, err, s.config.Hub.Followed())
		if record, err = held, nil; held.Revision == 0 {
			err = consumers.ErrNotFound
		}
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.GetConsumer200JSONResponse{OneConsumerJSONResponse: s.oneConsumer(p, record, true)}, nil
}

// PutConsumer replaces the record of a consumer.
func (s *server) PutConsumer(
	ctx context.Context, r gen.PutConsumerRequestObject,
) (gen.PutConsumerResponseObject, error) {
	// Read the change and its document.
	p, w, err := s.consumerWrite(r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	record, problems, err := s.replaced(ctx, p, *r.Body)
	if err != nil {
		return nil, storeFailure(err)
	}
	if len(problems) > 0 {
		return nil, invalidConsumer(problems)
	}
	record.By, w.Record = who.name, &record
	// A dry run only checks the revision.
	if r.Params.DryRun {
		if err := s.wouldMatch(ctx, w); err != nil {
			return nil, storeFailure(conflict(err, consumerChanged))
		}
		record.Updated = s.config.Now().UTC()
		return gen.PutConsumer200JSONResponse{OneConsumerJSONResponse: s.oneConsumer(p, record, false)}, nil
	}
	// Store the record.
	record.Revision, err = s.config.Consumers.Write(ctx,
		consumers.Changes{Writes: []consumers.Write{w}, Sets: s.setsInForce(),
			Entry: entry(ctx, "consumer.put", consumerResource(p.key))})
	if err != nil {
		return nil, storeFailure(conflict(err, consumerChanged))
	}
	s.config.Log.Info("consumer changed", "id", who.id, "source", p.source, "consumer", p.key.String(),
		"tier", record.Tier, "overrides", len(record.Overrides), "banned", record.Banned != nil,
		"bypass", record.Bypass != nil, "author", record.By)
	return gen.PutConsumer200JSONResponse{OneConsumerJSONResponse: s.oneConsumer(p, record, true)}, nil
}

// wouldMatch returns an error if the record no longer has the revision that a change replaces.
func (s *server) wouldMatch(ctx context.Context, w consumers.Write) error {
	held, err := s.config.Consumers.Get(ctx, w.Key)
	if err != nil && !errors.Is(err, consumers.ErrNotFound) {
		return err
	}
	if !w.Any && held.Revision != w.Expected {
		return errs.Conflict
	}
	return nil
}

// PutConsumers replaces the records of many consumers.
func (s *server) PutConsumers(
	ctx context.Context, r gen.PutConsumersRequestObject,
) (gen.PutConsumersResponseObject, error) {
	if _, anything, err := ifMatch(r.Params.IfMatch); err != nil {
		return nil, err
	} else if !anything {
		return nil, badRequest("If-Match must be *: each of the consumers has an ETag of its own")
	}
	who := callerOf(ctx)
	writes, problems, err := s.batch(ctx, r.Body.Consumers, who.name)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, invalidConsumer(problems)
	}
	answer := gen.PutConsumers200JSONResponse{Written: len(writes), DryRun: r.Params.DryRun}
	if r.Params.DryRun {
		return answer, nil
	}
	e := entry(ctx, "consumers.put", "consumers")
	e.After = audit.Value(map[string]int{"consumers": len(writes)})
	changes := consumers.Changes{Writes: writes, Sets: s.setsInForce(), Entry: e}
	if _, err := s.config.Consumers.Write(ctx, changes); err != nil {
		return nil, storeFailure(conflict(err, consumerChanged))
	}
	s.config.Log.Info("consumers changed", "id", who.id, "consumers", len(writes), "author", who.name)
	return answer, nil
}

// DeleteConsumer removes the record of a consumer.
func (s *server) DeleteConsumer(
	ctx context.Context, r gen.DeleteConsumerRequestObject,
) (gen.DeleteConsumerResponseObject, error) {
	p, w, err := s.consumerWrite(r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	changes := consumers.Changes{
		Writes: []consumers.Write{w}, Entry: entry(ctx, "consumer.delete", consumerResource(p.key)),
	}
	if _, err := s.config.Consumers.Write(ctx, changes); err != nil {
		return nil, storeFailure(conflict(err, consumerChanged))
	}
	who := callerOf(ctx)
	s.config.Log.Info("consumer forgotten", "id", who.id, "source", p.source, "consumer", p.key.String(),
		"author", who.name)
	return gen.DeleteConsumer204Response{}, nil
}

// consumerWrite finds the consumer of a change and the revision that the change replaces.
func (s *server) consumerWrite(match gen.IfMatch, id, source string) (p person, w consumers.Write, err error) {
	w.Expected, w.Any, err = ifMatch(match)
	if err != nil {
		return p, w, err
	}
	p, err = s.person(id, source)
	w.Key = p.key
	return p, w, err
}
