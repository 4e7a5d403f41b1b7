package api

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

// noteOffences stores the penalties that a worker of a node has begun, and reports whether it
// could.
func (s *server) noteOffences(c echo.Context, m *wire.Offences) (taken bool) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), offencesPatience)
	defer cancel()
	err := s.config.Penalties.Report(ctx, m)
	if err == nil {
		return true
	}
	level := slog.LevelDebug // The node has hung up.
	if c.Request().Context().Err() == nil {
		level = slog.LevelError
		s.config.Metrics.PenaltiesUnstored()
	}
	s.config.Log.Log(ctx, level, "offences cannot be stored; the node sends them again", "id", requestID(c), "error",
		err.Error())
	return false
}

// penaltyQuery returns the query that the parameters describe.
func (s *server) penaltyQuery(params gen.PardonPenaltiesParams) (q penalties.Query, err error) {
	q.Policy, q.Shadow = params.Policy, params.Shadow
	if params.Key != "" {
		key, err := keyhash.Parse(params.Key)
		if err != nil {
			return q, badRequest("key must be 32 hexadecimal digits")
		}
		q.Keys = []keyhash.Key{key}
	}
	if params.Consumer != "" {
		p, err := s.findConsumer(params.Consumer, params.Source)
		if err != nil {
			return q, err
		}
		q.Consumer = p.key.String()
	}
	if len(params.Partition) == 0 {
		return q, nil
	}
	switch {
	case params.Policy == "":
		return q, badRequest("partition needs policy: a partition key belongs to one policy")
	case params.Key != "":
		return q, badRequest("partition and key both name the caller: give partition or key")
	}
	q.Keys, err = s.penaltyKeys(params)
	return q, err
}

// penaltyKeys returns the keys that a policy's penalties use for a partition key.
func (s *server) penaltyKeys(params gen.PardonPenaltiesParams) ([]keyhash.Key, error) {
	k, err := s.findKey(params.Policy, gen.GetKeyParams{Partition: params.Partition, Source: params.Source})
	if err != nil {
		return nil, err
	}
	return s.penaltyKeysOf(k)
}

// penaltyKeysOf returns the keys that penalties use for a partition key.
func (s *server) penaltyKeysOf(k bucketKey) ([]keyhash.Key, error) {
	keys := match.Keys(k.partition.Key(), len(k.policy.Reserve))
	if k.drafted != nil {
		theirs, err := s.penaltyKeysOf(*k.drafted)
		if err != nil {
			return nil, err
		}
		keys = append(keys, theirs...)
	}
	if k.consumer != nil {
		secret, err := s.config.Hub.Secret()
		if err != nil {
			return nil, err
		}
		wide := match.WideKey(secret, k.policy.Name, *k.consumer)
		keys = append(keys, match.Keys(wide, len(k.policy.Reserve))...)
	}
	return keys, nil
}

// ListPenalties lists the callers under a penalty.
func (s *server) ListPenalties(
	ctx context.Context, r gen.ListPenaltiesRequestObject,
) (gen.ListPenaltiesResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	// Read the query.
	q, err := s.penaltyQuery(gen.PardonPenaltiesParams{
		Policy: r.Params.Policy, Partition: r.Params.Partition, Consumer: r.Params.Consumer, Source: r.Params.Source,
		Key: r.Params.Key, Shadow: r.Params.Shadow,
	})
	if err != nil {
		return nil, err
	}
	if token != "" {
		if q.Before, err = strconv.ParseUint(token, 10, 64); err != nil {
			return nil, errToken
		}
	}
	q.Ended = r.Params.Ended
	// Penalties come from memory, which must have been loaded.
	if err := s.unreadError(); err != nil && !s.config.Penalties.Loaded() {
		return nil, err
	} else if !s.config.Penalties.Loaded() {
		return nil, push.ErrNotReady
	}
	list, count := s.config.Penalties.List(q, size)
	// An empty answer may come from a policy that does not exist.
	if count == 0 {
		if err := s.knowPolicies(ctx, q.Policy); err != nil {
			return nil, err
		}
	}
	answer := gen.ListPenalties200JSONResponse{Penalties: []gen.Penalty{}, Count: count}
	now := s.config.Now()
	for i := range list {
		answer.Penalties = append(answer.Penalties, penaltyAnswer(&list[i], now))
	}
	if count > len(list) {
		answer.Next = pageToken(strconv.FormatUint(list[len(list)-1].Revision, 10))
	}
	return answer, nil
}

func penaltyAnswer(r *penalties.Record, now time.Time) gen.Penalty {
	return gen.Penalty{
		Key: r.Caller().String(), Version: r.Version,
		Policy: r.Policy, Level: r.Level, Until: time.UnixMilli(r.Until).UTC(),
		InForce: r.InForce(now), Forgotten: time.UnixMilli(r.Forgotten).UTC(), Since: r.Since, Shadow: r.Shadow,
		Node: r.Node, Consumer: r.Consumer, Shown: r.Shown,
	}
}

// PardonPenalties pardons callers.
func (s *server) PardonPenalties(
	ctx context.Context, r gen.PardonPenaltiesRequestObject,
) (gen.PardonPenaltiesResponseObject, error) {
	if why := badReason(r.Body.Reason); why != "" {
		return nil, badRequest("reason %s", why)
	}
	q, err := s.penaltyQuery(r.Params)
	if err != nil {
		return nil, err
	}
	// Name the resource for the audit. A pardon of all must say so.
	resource := "penalties"
	switch {
	case q.All() && !r.Body.All:
		return nil, badRequest("say whom to pardon, by key, policy, consumer or partition, or that it is all")
	case !q.All() && r.Body.All:
		return nil, badRequest("all is for a pardon without parameters: these say whom to pardon")
	case len(q.Keys) > 0:
		resource += "/" + q.Keys[0].String()
	case q.Consumer != "":
		resource += "/" + q.Consumer
	case q.Policy != "":
		resource += "/" + q.Policy
	}
	// Pardon, and store the audit entry.
	e := newEntry(ctx, "penalties.pardon", resource)
	e.Reason = r.Body.Reason
	n, err := s.config.Penalties.Pardon(ctx, q, e)
	if err != nil {
		return nil, storeFailure(err)
	}
	if n == 0 {
		if err := s.knowPolicies(ctx, q.Policy); err != nil {
			return nil, err
		}
	}
	s.config.Log.Warn("penalties pardoned", "id", e.RequestID, "author", e.By, "resource", resource, "pardoned", n,
		"reason", r.Body.Reason)
	return gen.PardonPenalties200JSONResponse{Pardoned: n}, nil
}
