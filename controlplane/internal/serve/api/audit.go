package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// The names of changed things in audit entries.
const policySetResource = "policyset"

func policyResource(name string) string       { return "policies/" + name }
func consumerResource(key keyhash.Key) string { return "consumers/" + key.String() }

// newEntry returns the audit entry for the change that a request makes. The store keeps it together
// with the change.
func newEntry(ctx context.Context, action, resource string) audit.Entry {
	who := callerOf(ctx)
	return audit.Entry{By: who.name, Role: string(who.role), RequestID: who.id, Action: action, Resource: resource}
}

// ListAudit lists who changed what.
func (s *server) ListAudit(ctx context.Context, r gen.ListAuditRequestObject) (gen.ListAuditResponseObject, error) {
	// Read the query.
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	if of, _, _ := strings.Cut(r.Params.Resource, "/"); of != "" && !slices.Contains(audit.Resources, of) {
		return nil, badRequest("resource must begin with one of %s", strings.Join(audit.Resources, ", "))
	}
	query := audit.Query{Before: token, Since: r.Params.Since, By: r.Params.By, Resource: r.Params.Resource}
	// Ask the store. If it fails, ask the entries in memory.
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
	// An empty answer may come from a name that does not exist.
	if len(list) == 0 && token == "" {
		if err := s.knowQuery(timed, query); err != nil {
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

// knowQuery refuses a query by which no change is found, and that has a name which there is not.
func (s *server) knowQuery(ctx context.Context, q audit.Query) error {
	names := s.config.Tokens.Names()
	if q.By != "" && !slices.Contains(names, q.By) && s.hasNone(ctx, audit.Query{By: q.By}) {
		return noName("token", q.By, "and the log has no change by a token of this name", names)
	}
	of, below, _ := strings.Cut(q.Resource, "/")
	name, _, _ := strings.Cut(below, "/")
	switch of {
	case "policies", "keys":
		if s.hasNone(ctx, audit.Query{Resource: of + "/" + name}) {
			return s.refuseUnknown(ctx, "policy", "and the log has no change of a policy of this name",
				[]string{name}, policyNames)
		}
	case "consumers", "penalties":
		if _, err := keyhash.Parse(name); err != nil && name != "" {
			return badRequest("resource: %s are known by their hash, 32 hexadecimal digits, and not by %q", of, name)
		}
	}
	return nil
}

// hasNone reports whether no entry is kept that a query wants. It is not known of more entries than
// one answer looks through, nor while the store is away.
func (s *server) hasNone(ctx context.Context, q audit.Query) bool {
	found, next, err := audit.Find(ctx, s.config.Audit, q, 1)
	return err == nil && len(found) == 0 && next == ""
}

// value returns nil for an absent value, so that JSON leaves it out.
func value(raw json.RawMessage) any {
	if raw == nil || string(raw) == "null" {
		return nil
	}
	return raw
}
