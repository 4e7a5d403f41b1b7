// Package audit records changes and their authors. Every write of a store takes its audit entry and
// stores it together with the change, in the same script or transaction, so that there is never one
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

// Kept is how many entries a store keeps in each of its lists: one for the policy set and the whole
// deployment, one for consumers, so that many changes of one kind do not push out the others. The
// oldest are dropped.
const Kept = 10_000

// The bounds of an entry, in bytes. Longer texts are cut; of a larger value only the size is kept.
const (
	maxText  = 512
	maxValue = 4 << 10
)

// Resources are the kinds of things that change: the parts of Entry.Resource before the slash.
var Resources = []string{"policyset", "policies", "rollout", "consumers", "keys", "enforcement", "penalties"}

// ErrCursor: a text that should name an entry is not an ID.
var ErrCursor = errors.New("the cursor is not the ID of an audit entry")

// Entry is one change. The writer fills in all fields but ID, At and, where the store documents it,
// Before.
type Entry struct {
	// ID is given by the store. Entries in the order of their IDs are in the order of time.
	ID string `json:"-"`
	// At is the time of the change by the store's clock. Two entries of one list never have the
	// same time.
	At time.Time `json:"-"`
	// By is the name of the token and Role its role. Both are empty for changes that the control
	// plane makes by itself.
	By   string `json:"by"`
	Role string `json:"role,omitempty"`
	// Action is what was done, as noun and verb: policyset.put, policy.patch, version.rollback,
	// consumer.delete.
	Action string `json:"action"`
	// Resource is what changed: policyset, policies/NAME, consumers/HASH. It never holds a
	// consumer's value.
	Resource string `json:"resource"`
	// RequestID is the id of the request in the control plane's log.
	RequestID string `json:"request_id,omitempty"`
	// Before and After are JSON: a small value as a whole, or a summary of a large one; nil for
	// nothing.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Reason is the operator's reason.
	Reason string `json:"reason,omitempty"`
}

// Store keeps entries.
type Store interface {
	// Audit returns at most limit entries, newest first: those with an ID below before, or the
	// newest if that is empty.
	Audit(ctx context.Context, before string, limit int) ([]Entry, error)
}

// Value is the form of v in Before and After.
func Value(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		text = strconv.AppendQuote(nil, err.Error())
	}
	return text
}

// Encode is the stored form of an entry, bounded and never empty, without ID and At, which the
// store puts before it.
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

// DamagedAction is that of an entry that a store cannot read any more.
const DamagedAction = "audit.damaged"

// Read reads an element of a store's list, which is of a time in microseconds since 1970. A damaged
// element becomes an entry that says so: it hides no other, and is not left out unseen.
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

// Stamp is the time in an ID, in microseconds since 1970. ErrCursor.
func Stamp(id string) (int64, error) {
	digits, list, _ := strings.Cut(id, "-")
	stamp, err := strconv.ParseInt(digits, 10, 64)
	if len(digits) != 16 || list == "" || err != nil || stamp < 0 {
		return 0, ErrCursor
	}
	return stamp, nil
}
