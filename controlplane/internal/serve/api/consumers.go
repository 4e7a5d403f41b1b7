package api

import (
	"context"
	"errors"
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

// consumer is the consumer that a request names.
type consumer struct {
	// sets are the policy sets in force that find the consumer at the source. The set of the nodes
	// outside the rollout comes first.
	sets   []*policies.Compiled
	source string
	key    keyhash.Key
}

var errNoConsumers = &failure{code: errs.NoConsumers,
	detail: "the policy set names no identity.consumer, which says where requests say who they are"}

// findConsumer finds the consumer that a request names. The name of the source may be empty if the
// policy set has only one source of consumers.
func (s *server) findConsumer(id, sourceName string) (c consumer, err error) {
	active, _ := s.config.Policies.Active()
	if err := s.unreadError(); active.Current == nil && err != nil {
		return c, err
	}
	source, sets, err := findSource(active, sourceName)
	if err != nil {
		return c, err
	}
	secret, err := s.config.Hub.Secret()
	if err != nil {
		return c, err
	}
	if id == "" || len(id) > policy.MaxText {
		return c, badRequest("the consumer must have 1 to %d bytes, percent-encoded in the path", policy.MaxText)
	}
	// Hash the consumer's id. An IPv6 address counts as its network.
	value := []byte(id)
	if source.Kind == policy.SourceClientIP {
		if value, err = clientKey("the consumer", id, sets[0].Set.Identity.IPv6Prefix); err != nil {
			return c, err
		}
	}
	key := match.ConsumerKey(secret, source, string(value))
	return consumer{sets: sets, source: source.String(), key: key}, nil
}

// findSource finds a source by its name in the versions in force. sets are the versions that have
// the source. If the name means another source in each version, only the version of the nodes
// outside the rollout counts.
func findSource(active policies.Active, name string) (source policy.Source, sets []*policies.Compiled, err error) {
	current, currentErr := sourceIn(active.Current, name)
	draft, draftErr := sourceIn(active.Draft, name)
	switch {
	case currentErr == nil && draftErr == nil && current == draft:
		return current, []*policies.Compiled{active.Current, active.Draft}, nil
	case currentErr == nil:
		return current, []*policies.Compiled{active.Current}, nil
	case draftErr == nil:
		return draft, []*policies.Compiled{active.Draft}, nil
	case errors.Is(currentErr, errNoConsumers):
		return source, nil, draftErr
	}
	return source, nil, currentErr
}

// sourceIn finds a source of consumers by its name in a version, which may be nil. The error is
// errNoConsumers if the version has no sources.
func sourceIn(version *policies.Compiled, name string) (found policy.Source, err error) {
	if version == nil || len(version.Set.Identity.Consumer) == 0 {
		return found, errNoConsumers
	}
	return consumerSource(version.Set, name)
}

// consumerSource finds a source of consumers by its name in a policy set. The name may be empty if
// the set has only one source.
func consumerSource(set *policy.Set, name string) (found policy.Source, err error) {
	sources := set.Identity.Consumer
	var named []policy.Source
	var names []string
	for _, source := range sources {
		names = append(names, source.String())
		if name == "" || isSource(source, name) {
			named = append(named, source)
		}
	}
	switch all := strings.Join(names, ", "); {
	case name == "" && len(sources) > 1:
		return found, badRequest("there are several places to find a consumer: name the source (%s), "+
			"by ?source= or weir --source", all)
	case len(named) != 1:
		return found, badRequest("source must be one of the policy set's: %s", all)
	}
	return named[0], nil
}

// isSource reports whether a text names the source: either as the policy set writes it, or by its
// name alone. The case of a header's name does not matter.
func isSource(s policy.Source, text string) bool {
	full := s.String()
	if s.Kind == policy.SourceHeader {
		text = strings.ToLower(text)
	}
	return text == full || s.Name != "" && text == s.Name
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

// consumerResponse returns the response with a record. Only a stored record has an ETag.
func (s *server) consumerResponse(c consumer, r consumers.Record, stored bool) gen.OneConsumerJSONResponse {
	headers := gen.OneConsumerResponseHeaders{CacheControl: "no-cache"}
	if stored {
		tag := etag(r.Revision)
		headers.ETag = &tag
	}
	body := s.consumerAnswer(c.key, r)
	body.Source = c.source
	return gen.OneConsumerJSONResponse{Headers: headers, Body: body}
}

// ListConsumers lists the consumers that have a record.
func (s *server) ListConsumers(
	ctx context.Context, r gen.ListConsumersRequestObject,
) (gen.ListConsumersResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
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
	c, err := s.findConsumer(r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	record, err := s.config.Consumers.Get(timed, c.key)
	if err != nil && !errors.Is(err, consumers.ErrNotFound) {
		held, known := s.config.Consumers.Held(c.key)
		if !known {
			return nil, &failure{code: errs.StoreUnavailable, cause: err, detail: storeFailureText(err) +
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
	return gen.GetConsumer200JSONResponse{OneConsumerJSONResponse: s.consumerResponse(c, record, true)}, nil
}

// PutConsumer replaces the record of a consumer.
func (s *server) PutConsumer(
	ctx context.Context, r gen.PutConsumerRequestObject,
) (gen.PutConsumerResponseObject, error) {
	// Read the change and its document.
	c, w, err := s.consumerWrite(r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	record, problems, err := s.readReplacement(ctx, c, *r.Body)
	if err != nil {
		return nil, storeFailure(err)
	}
	if len(problems) > 0 {
		return nil, invalidConsumer(problems)
	}
	record.By, w.Record = who.name, &record
	// A dry run only checks the revision.
	if r.Params.DryRun {
		if err := s.checkRevision(ctx, w); err != nil {
			return nil, storeFailure(explainConflict(err, consumerChanged))
		}
		record.Updated = s.config.Now().UTC()
		return gen.PutConsumer200JSONResponse{OneConsumerJSONResponse: s.consumerResponse(c, record, false)}, nil
	}
	// Store the record.
	record.Revision, err = s.config.Consumers.Write(ctx,
		consumers.Changes{Writes: []consumers.Write{w}, Sets: s.setsInForce(),
			Entry: newEntry(ctx, "consumer.put", consumerResource(c.key))})
	if err != nil {
		return nil, storeFailure(explainConflict(err, consumerChanged))
	}
	s.config.Log.Info("consumer changed", "id", who.id, "source", c.source, "consumer", c.key.String(),
		"tier", record.Tier, "overrides", len(record.Overrides), "banned", record.Banned != nil,
		"bypass", record.Bypass != nil, "author", record.By)
	return gen.PutConsumer200JSONResponse{OneConsumerJSONResponse: s.consumerResponse(c, record, true)}, nil
}

// checkRevision returns an error if the record no longer has the revision that a change replaces.
func (s *server) checkRevision(ctx context.Context, w consumers.Write) error {
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
	writes, problems, err := s.readBatch(ctx, r.Body.Consumers, who.name)
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
	e := newEntry(ctx, "consumers.put", "consumers")
	e.After = audit.Value(map[string]int{"consumers": len(writes)})
	changes := consumers.Changes{Writes: writes, Sets: s.setsInForce(), Entry: e}
	if _, err := s.config.Consumers.Write(ctx, changes); err != nil {
		return nil, storeFailure(explainConflict(err, consumerChanged))
	}
	s.config.Log.Info("consumers changed", "id", who.id, "consumers", len(writes), "author", who.name)
	return answer, nil
}

// DeleteConsumer removes the record of a consumer.
func (s *server) DeleteConsumer(
	ctx context.Context, r gen.DeleteConsumerRequestObject,
) (gen.DeleteConsumerResponseObject, error) {
	c, w, err := s.consumerWrite(r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	changes := consumers.Changes{
		Writes: []consumers.Write{w}, Entry: newEntry(ctx, "consumer.delete", consumerResource(c.key)),
	}
	if _, err := s.config.Consumers.Write(ctx, changes); err != nil {
		return nil, storeFailure(explainConflict(err, consumerChanged))
	}
	who := callerOf(ctx)
	s.config.Log.Info("consumer forgotten", "id", who.id, "source", c.source, "consumer", c.key.String(),
		"author", who.name)
	return gen.DeleteConsumer204Response{}, nil
}

// consumerWrite finds the consumer of a change and the revision that the change replaces.
func (s *server) consumerWrite(match gen.IfMatch, id, source string) (c consumer, w consumers.Write, err error) {
	w.Expected, w.Any, err = ifMatch(match)
	if err != nil {
		return c, w, err
	}
	c, err = s.findConsumer(id, source)
	w.Key = c.key
	return c, w, err
}
