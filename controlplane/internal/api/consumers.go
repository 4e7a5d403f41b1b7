package api

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// consumersPath is before a consumer's value, which is not logged.
const consumersPath = "/v1/consumers/"

// person is the consumer that a request names.
type person struct {
	set    *policy.Set
	source string
	key    consumers.Key
}

// person finds out who is meant; the source may be left out where there is one only.
func (s *server) person(id, source string) (p person, err error) {
	current, _ := s.Policies.Current()
	if current == nil || len(current.Set.Identity.Consumer) == 0 {
		return p, &failure{status: http.StatusConflict, kind: "no-consumers",
			detail: "the policy set names no identity.consumer, which says where requests say who they are"}
	}
	p.set = current.Set
	sources := p.set.Identity.Consumer
	var names []string
	for _, source := range sources {
		names = append(names, source.String())
	}
	at := 0
	switch {
	case source != "":
		at = slices.Index(names, source)
	case len(sources) > 1:
		return p, badRequest("there are several places to find a consumer: name the source (%s), by ?source= or weir --source", strings.Join(names, ", "))
	}
	if at < 0 {
		return p, badRequest("source must be one of the policy set's: %s", strings.Join(names, ", "))
	}
	secret, err := s.Hub.Secret()
	if err != nil {
		return p, err
	}
	if id == "" || len(id) > policy.MaxText {
		return p, badRequest("the consumer must have 1 to %d bytes, percent-encoded in the path", policy.MaxText)
	}
	p.source, p.key = names[at], match.ConsumerKey(secret, sources[at], id)
	return p, nil
}

func (p person) answer(r consumers.Record) gen.OneConsumerJSONResponse {
	return gen.OneConsumerJSONResponse{
		Headers: gen.OneConsumerResponseHeaders{ETag: etag(r.Revision), CacheControl: "no-cache"},
		Body:    gen.Consumer{Source: p.source, Key: hex.EncodeToString(p.key[:]), Tier: r.Tier, Updated: r.Updated, By: r.By},
	}
}

// ListConsumers lists those to whom something is assigned.
func (s *server) ListConsumers(ctx context.Context, r gen.ListConsumersRequestObject) (gen.ListConsumersResponseObject, error) {
	size, token, err := page(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	list, next, err := s.Consumers.List(ctx, token, size)
	if errors.Is(err, consumers.ErrToken) {
		return nil, errToken
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	answer := gen.ListConsumers200JSONResponse{Consumers: []gen.Consumer{}, Next: pageToken(next)}
	for _, one := range list {
		answer.Consumers = append(answer.Consumers, gen.Consumer{Key: hex.EncodeToString(one.Key[:]), Tier: one.Tier, Updated: one.Updated, By: one.By})
	}
	return answer, nil
}

// GetConsumer answers with what is assigned to a consumer.
func (s *server) GetConsumer(ctx context.Context, r gen.GetConsumerRequestObject) (gen.GetConsumerResponseObject, error) {
	p, err := s.person(r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	record, err := s.Consumers.Get(ctx, p.key)
	if err != nil {
		return nil, storeFailure(err)
	}
	return gen.GetConsumer200JSONResponse{OneConsumerJSONResponse: p.answer(record)}, nil
}

// PutConsumer assigns a tier.
func (s *server) PutConsumer(ctx context.Context, r gen.PutConsumerRequestObject) (gen.PutConsumerResponseObject, error) {
	p, w, err := s.consumerWrite(ctx, "consumer.put", r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	if err := hasTier(p.set, r.Body.Tier); err != nil {
		return nil, err
	}
	w.Record = &consumers.Record{Tier: r.Body.Tier, By: who.name}
	record, err := s.Consumers.Write(ctx, w)
	if err != nil {
		return nil, storeFailure(err)
	}
	s.Log.Info("consumer changed", "id", who.id, "source", p.source, "consumer", hex.EncodeToString(p.key[:]),
		"tier", record.Tier, "author", record.By)
	return gen.PutConsumer200JSONResponse{OneConsumerJSONResponse: p.answer(record)}, nil
}

// DeleteConsumer forgets what is assigned.
func (s *server) DeleteConsumer(ctx context.Context, r gen.DeleteConsumerRequestObject) (gen.DeleteConsumerResponseObject, error) {
	p, w, err := s.consumerWrite(ctx, "consumer.delete", r.Params.IfMatch, r.ID, r.Params.Source)
	if err != nil {
		return nil, err
	}
	if _, err := s.Consumers.Write(ctx, w); err != nil {
		return nil, storeFailure(err)
	}
	who := callerOf(ctx)
	s.Log.Info("consumer forgotten", "id", who.id, "source", p.source, "consumer", hex.EncodeToString(p.key[:]), "author", who.name)
	return gen.DeleteConsumer204Response{}, nil
}

// consumerWrite finds out whom a change is about and what it replaces.
func (s *server) consumerWrite(ctx context.Context, action string, match gen.IfMatch, id, source string) (p person, w consumers.Write, err error) {
	if w.Expected, w.Any, err = ifMatch(match); err != nil {
		return p, w, err
	}
	p, err = s.person(id, source)
	w.Key, w.Entry = p.key, entry(ctx, action, consumerResource(p.key))
	return p, w, err
}

// hasTier refuses tiers that the policy set does not name.
func hasTier(set *policy.Set, tier string) error {
	if slices.Contains(set.Tiers, tier) {
		return nil
	}
	reason := "must be one of the tiers " + strings.Join(set.Tiers, ", ")
	if len(set.Tiers) == 0 {
		reason = "is none: the policy set names no tiers"
	}
	return &failure{status: http.StatusUnprocessableEntity, kind: "invalid-consumer", detail: "nothing has been changed",
		problems: policy.Problems{{Path: "tier", Reason: reason}}}
}
