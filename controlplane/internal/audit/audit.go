// Package audit knows who changed what. Every write of a store takes the entry about it and keeps it together with the change: in
// the same script or transaction, so that there is never one without the other.
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

// Kept is how many entries a store keeps of each of its lists: of the policy set and what belongs to the whole deployment, and
// of consumers, so that many changes of the one do not push out those of the other. The oldest are dropped.
const Kept = 10_000

// The bounds of what an entry may hold, in bytes. What is longer is cut short; of a value that is larger only its size is kept.
const (
	maxText  = 512
	maxValue = 4 << 10
)

// Resources are what changes are about: the parts of Entry.Resource before the slash.
var Resources = []string{"policyset", "policies", "rollout", "consumers", "keys", "enforcement"}

// ErrCursor: what should name an entry is no ID.
var ErrCursor = errors.New("the cursor is not the ID of an audit entry")

// Entry says who changed what. The writer fills in all but ID, At and, where the store says so, Before.
type Entry struct {
	// ID is the store's: entries in the order of their IDs are in the order of time.
	ID string `json:"-"`
	// At is the time of the change by the store's clock. Two entries of one list never have the same.
	At time.Time `json:"-"`
	// By is the name of the token and Role its role. Both are empty for what the control plane does by itself.
	By   string `json:"by"`
	Role string `json:"role,omitempty"`
	// Action is what was done, as noun and verb: policyset.put, policy.patch, version.rollback, consumer.delete.
	Action string `json:"action"`
	// Resource is what it was done to: policyset, policies/NAME, consumers/HASH. It never holds what a caller says of itself.
	Resource string `json:"resource"`
	// RequestID is what the control plane's log has about it.
	RequestID string `json:"request_id,omitempty"`
	// Before and After are JSON: a small value as a whole, or what tells a large one. nil for nothing.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Reason is why, for people.
	Reason string `json:"reason,omitempty"`
}

// Store keeps entries.
type Store interface {
	// Audit returns at most limit entries, newest first: those with an ID below before, or the newest if that is empty.
	Audit(ctx context.Context, before string, limit int) ([]Entry, error)
}

// Value is what Before and After hold of v.
func Value(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		text = strconv.AppendQuote(nil, err.Error())
	}
	return text
}

// Encode is an entry as stores keep it, bounded and never empty, without ID and At, which the store itself puts before it.
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

// Decode reads what a store keeps in one of its lists: microseconds since 1970, a space, and what Encode made.
func Decode(list, stored string) (e Entry, err error) {
	stamp, text, _ := strings.Cut(stored, " ")
	if err = json.Unmarshal([]byte(text), &e); err == nil {
		var micros int64
		micros, err = strconv.ParseInt(stamp, 10, 64)
		e.At, e.ID = time.UnixMicro(micros).UTC(), fmt.Sprintf("%016d-%s", micros, list)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("an audit entry of %s is damaged: %w", list, err)
	}
	return e, nil
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
