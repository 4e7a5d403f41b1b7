// Package audit records changes and their authors. Every write of a store takes its audit entry and
// stores it together with the change, in the same script or transaction, so that neither exists
// without the other.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kept is the maximum number of entries in each list of a store; the oldest are dropped. One
// list is for the policy set and the whole deployment, and a second list is for consumers, so that
// many changes of one kind do not displace the entries of the other kind.
const Kept = 10_000

// These are the bounds of an entry, in bytes. Longer texts are cut. A larger value is replaced by
// its size.
const (
	maxText  = 512
	maxValue = 4 << 10
)

// Resources are the kinds of resources: the part of Entry.Resource before the slash.
var Resources = []string{"policyset", "policies", "rollout", "consumers", "keys", "enforcement", "penalties"}

// ErrCursor is returned for a cursor that is not the ID of an entry.
var ErrCursor = errors.New("the cursor is not the ID of an audit entry")

// Entry describes one change. The writer sets all fields except ID and At. If the store documents
// that it sets Before, the writer leaves that out too.
type Entry struct {
	// ID is set by the store. Entries sorted by ID are sorted by time.
	ID string `json:"-"`
	// At is the time of the change by the store's clock. It is unique within a list.
	At time.Time `json:"-"`
	// By is the name of the token and Role its role. Both are empty for changes that the control
	// plane makes itself.
	By   string `json:"by"`
	Role string `json:"role,omitempty"`
	// Action names the change as noun and verb: policyset.put, policy.patch, version.rollback,
	// consumer.delete.
	Action string `json:"action"`
	// Resource names the changed resource: policyset, policies/NAME, consumers/HASH. It never
	// contains a consumer's value.
	Resource string `json:"resource"`
	// RequestID is the ID of the request in the control plane's log.
	RequestID string `json:"request_id,omitempty"`
	// Before and After are JSON: a small value itself, or a summary of a large value. nil means no
	// value.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Reason is the reason that the operator gave; empty for none.
	Reason string `json:"reason,omitempty"`
}

// Store stores entries.
type Store interface {
	// Audit returns at most limit entries, newest first: entries with an ID below before, or the
	// newest ones if before is empty.
	Audit(ctx context.Context, before string, limit int) ([]Entry, error)
}

// Value returns v in the form of Before and After.
func Value(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		text = strconv.AppendQuote(nil, err.Error())
	}
	return text
}

// Encode returns the stored form of an entry, which is bounded and never empty. It does not contain
// ID and At, which the store adds in front.
func (e Entry) Encode() (string, error) {
	for _, s := range []*string{&e.By, &e.Role, &e.Action, &e.Resource, &e.RequestID, &e.Reason} {
		if len(*s) > maxText {
			*s = strings.ToValidUTF8((*s)[:maxText], "") + "…"
		}
	}
	for _, v := range []*json.RawMessage{&e.Before, &e.After} {
		if len(*v) > maxValue {
			*v = Value(fmt.Sprintf("%d bytes", len(*v)))
		}
	}
	text, err := json.Marshal(e)
	return string(text), err
}

// Decode reads an element of a store's list: microseconds since 1970, a space, and the result of
// Encode.
func Decode(list, stored string) (e Entry, err error) {
	stamp, text, _ := strings.Cut(stored, " ")
	err = json.Unmarshal([]byte(text), &e)
	if err == nil {
		var micros int64
		micros, err = strconv.ParseInt(stamp, 10, 64)
		e.At, e.ID = time.UnixMicro(micros).UTC(), fmt.Sprintf("%016d-%s", micros, list)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("an audit entry of %s is damaged: %w", list, err)
	}
	return e, nil
}

// DamagedAction is the action of an entry that cannot be read any more.
const DamagedAction = "audit.damaged"

// Read reads an element of a store's list. micros is the time of the element since 1970. A damaged
// element becomes an entry that says so, so that it is visible and hides no other entry.
func Read(list string, micros int64, stored string) Entry {
	id := fmt.Sprintf("%016d-%s", micros, list)
	e, err := Decode(list, stored)
	if err != nil || e.ID != id {
		return Entry{
			ID: id, At: time.UnixMicro(micros).UTC(), Action: DamagedAction, Resource: "audit",
			Reason: "the store cannot read this entry: it is damaged",
		}
	}
	return e
}

// Stamp returns the time in an ID, in microseconds since 1970. It returns ErrCursor for a text that
// is no ID.
func Stamp(id string) (int64, error) {
	digits, list, _ := strings.Cut(id, "-")
	stamp, err := strconv.ParseInt(digits, 10, 64)
	if len(digits) != 16 || list == "" || err != nil || stamp < 0 {
		return 0, ErrCursor
	}
	return stamp, nil
}
