package api

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

const (
	consumersPath   = "/v1/consumers/"
	maxConsumerBody = 4 << 10
)

// ConsumerAnswer is what is known of a consumer.
type ConsumerAnswer struct {
	// Source is where requests say who they are, like header:x-api-key. Lists do not know it.
	Source string `json:"source,omitempty"`
	// Key is the keyed hash by which the consumer is stored; its value is nowhere.
	Key     string    `json:"key"`
	Tier    string    `json:"tier"`
	Updated time.Time `json:"updated"`
	By      string    `json:"by"`
}

// person is the consumer that a request names.
type person struct {
	set    *policy.Set
	source string
	key    consumers.Key
}

// person reads the path and ?source, which may be left out where there is one source only.
func (s *server) person(c echo.Context) (p person, err error) {
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
	switch text := c.QueryParam("source"); {
	case text != "":
		at = slices.Index(names, text)
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
	// Not by the router's parameter, which is decoded already or not, as the path may be.
	id, err := url.PathUnescape(strings.TrimPrefix(c.Request().URL.EscapedPath(), consumersPath))
	if err != nil || id == "" || len(id) > policy.MaxText {
		return p, badRequest("the consumer must have 1 to %d bytes, percent-encoded in the path", policy.MaxText)
	}
	p.source, p.key = names[at], match.ConsumerKey(secret, sources[at], id)
	return p, nil
}

func (p person) answer(c echo.Context, r consumers.Record) error {
	c.Response().Header().Set("ETag", etag(r.Revision))
	c.Response().Header().Set("Cache-Control", "no-cache")
	return c.JSON(http.StatusOK, ConsumerAnswer{p.source, hex.EncodeToString(p.key[:]), r.Tier, r.Updated, r.By})
}

// ConsumersAnswer is a page of consumers, in no order, each by its key alone; Next leads to the following page and is empty on
// the last.
type ConsumersAnswer struct {
	Consumers []ConsumerAnswer `json:"consumers"`
	Next      string           `json:"next_page_token"`
}

func (s *server) listConsumers(c echo.Context) error {
	size, token, err := page(c)
	if err != nil {
		return err
	}
	list, next, err := s.Consumers.List(c.Request().Context(), token, size)
	if errors.Is(err, consumers.ErrToken) {
		return errToken
	}
	if err != nil {
		return storeFailure(err)
	}
	answer := ConsumersAnswer{Consumers: []ConsumerAnswer{}, Next: pageToken(next)}
	for _, one := range list {
		answer.Consumers = append(answer.Consumers, ConsumerAnswer{"", hex.EncodeToString(one.Key[:]), one.Tier, one.Updated, one.By})
	}
	return c.JSON(http.StatusOK, answer)
}

func (s *server) getConsumer(c echo.Context) error {
	p, err := s.person(c)
	if err != nil {
		return err
	}
	record, err := s.Consumers.Get(c.Request().Context(), p.key)
	if err != nil {
		return storeFailure(err)
	}
	return p.answer(c, record)
}

func (s *server) putConsumer(c echo.Context) error {
	p, w, err := s.consumerWrite(c)
	if err != nil {
		return err
	}
	body, err := s.body(c, maxConsumerBody)
	if err != nil {
		return err
	}
	if w.Record, err = readConsumer(body, p.set); err != nil {
		return err
	}
	w.Record.By = author(c)
	record, err := s.Consumers.Write(c.Request().Context(), w)
	if err != nil {
		return storeFailure(err)
	}
	s.Log.Info("consumer changed", "id", requestID(c), "source", p.source, "consumer", hex.EncodeToString(p.key[:]),
		"tier", record.Tier, "author", record.By)
	return p.answer(c, record)
}

func (s *server) deleteConsumer(c echo.Context) error {
	p, w, err := s.consumerWrite(c)
	if err != nil {
		return err
	}
	if _, err := s.Consumers.Write(c.Request().Context(), w); err != nil {
		return storeFailure(err)
	}
	s.Log.Info("consumer forgotten", "id", requestID(c), "source", p.source, "consumer", hex.EncodeToString(p.key[:]), "author", author(c))
	return c.NoContent(http.StatusNoContent)
}

// consumerWrite reads whom a change is about and what it replaces.
func (s *server) consumerWrite(c echo.Context) (p person, w consumers.Write, err error) {
	if w.Expected, w.Any, err = ifMatch(c.Request().Header); err != nil {
		return p, w, err
	}
	if err = plainBody(c.Request()); err != nil {
		return p, w, err
	}
	p, err = s.person(c)
	w.Key = p.key
	return p, w, err
}

// readConsumer reads the body of a change.
func readConsumer(body []byte, set *policy.Set) (*consumers.Record, error) {
	var doc struct {
		Tier string `json:"tier"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil || d.More() {
		return nil, badRequest(`the body must be JSON like {"tier": "premium"}`)
	}
	if !slices.Contains(set.Tiers, doc.Tier) {
		reason := "must be one of the tiers " + strings.Join(set.Tiers, ", ")
		if len(set.Tiers) == 0 {
			reason = "is none: the policy set names no tiers"
		}
		return nil, &failure{status: http.StatusUnprocessableEntity, kind: "invalid-consumer", detail: "nothing has been changed",
			problems: policy.Problems{{Path: "tier", Reason: reason}}}
	}
	return &consumers.Record{Tier: doc.Tier}, nil
}
