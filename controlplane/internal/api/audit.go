package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// What audit entries call the things that are changed.
const policySetResource = "policyset"

func policyResource(name string) string       { return "policies/" + name }
func consumerResource(key keyhash.Key) string { return "consumers/" + key.String() }

// entry is what a request says of the change that it makes, to be kept by the store together with
// that.
func entry(ctx context.Context, action, resource string) audit.Entry {
	who := callerOf(ctx)
	return audit.Entry{By: who.name, Role: string(who.role), RequestID: who.id, Action: action, Resource: resource}
}

// ListAudit lists who changed what.
func (s *server) ListAudit(ctx context.Context, r gen.ListAuditRequestObject) (gen.ListAuditResponseObject, error) {
	size, token, err := page(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	if of, _, _ := strings.Cut(r.Params.Resource, "/"); of != "" && !slices.Contains(audit.Resources, of) {
		return nil, badRequest("resource must begin with one of %s", strings.Join(audit.Resources, ", "))
	}
	query := audit.Query{Before: token, Since: r.Params.Since, By: r.Params.By, Resource: r.Params.Resource}
	timed, cancel := s.atHand(ctx)
	defer cancel()
	list, next, err := audit.Find(timed, s.config.Audit, query, size)
	if err != nil && !errors.Is(err, audit.ErrCursor) {
		held, since := s.config.Audit.InMemory()
		if found, more, unknown := audit.Find(ctx, held, query, size); unknown == nil {
			s.noteHeld(ctx, err, since)
			list, next, err = found, more, nil
		}
	}
	if errors.Is(err, audit.ErrCursor) {
		return nil, errToken
	}
	if err != nil {
		return nil, storeFailure(err)
	}
	if len(list) == 0 && token == "" && r.Params.By != "" {
		if names := s.config.Tokens.Names(); !slices.Contains(names, r.Params.By) {
			return nil, noName("token", r.Params.By, "and no change by one of this name is kept", names)
		}
	}
	if len(list) == 0 && token == "" {
		if err := s.knowResource(ctx, r.Params.Resource); err != nil {
			return nil, err
		}
	}
	answer := gen.ListAudit200JSONResponse{Entries: []gen.AuditEntry{}, Next: pageToken(next)}
	for _, e := range list {
		answer.Entries = append(answer.Entries,
			gen.AuditEntry{ID: e.ID, At: e.At, By: e.By, Role: e.Role, Action: e.Action, Resource: e.Resource,
				RequestID: e.RequestID, Before: value(e.Before), After: value(e.After), Reason: e.Reason})
	}
	return answer, nil
}

// knowResource refuses what no resource is called, where no change of it is found.
func (s *server) knowResource(ctx context.Context, resource string) error {
	of, below, _ := strings.Cut(resource, "/")
	name, _, _ := strings.Cut(below, "/")
	switch of {
	case "policies", "keys":
		return s.know(ctx, "policy", "and no change of one of this name is found", []string{name}, policyNames)
	case "consumers", "penalties":
		if _, err := keyhash.Parse(name); err != nil && name != "" {
			return badRequest("resource: %s are known by their hash, 32 hexadecimal digits, and not by %q", of, name)
		}
	}
	return nil
}

// value is nil, and so left out, for what is not there.
func value(raw json.RawMessage) any {
	if raw == nil || string(raw) == "null" {
		return nil
	}
	return raw
}
