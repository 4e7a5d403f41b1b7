// Package decisions keeps the callers that nodes limited lately, and the callers with the most
// requests. It uses samples that nodes report, bounded memory, and no API keys.
package decisions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// Kept is the number of refusals in a store.
	Kept = 10_000
	// remembered is the number of refusals that a replica remembers, in case the store is away.
	remembered = 1000
	// Age is the time for which refusals are shown.
	Age = time.Hour
	// After a refusal of a bucket, further refusals for the same reason by the same version are not
	// stored for quiet. Then, or when its caller is asked for, they are stored as one refusal. A
	// replica stores at most perSecond refusals a second, and at most pairPerSecond of one policy
	// and tier.
	quiet         = 10 * time.Second
	maxQuiet      = 4096
	perSecond     = 100
	pairPerSecond = 25
)

// ErrCursor means that the cursor does not come from an answer.
var ErrCursor = errors.New("the cursor is not the ID of a refusal")

// Decision is one reported refusal, in the words of the policy set that decided it.
type Decision struct {
	// ID is set by the store; IDs are in the order of the reports.
	ID string `json:"id"`
	// At is the time of the refusal, to about a second.
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	// Version is the version of the policy set. LimitIndex is the index of the limit among all its
	// limits.
	Version    uint64 `json:"version"`
	LimitIndex uint32 `json:"limit_index"`
	Policy     string `json:"policy"`
	// Tier is the tier of the caller; empty if the policy's limits do not differ by tier.
	Tier string `json:"tier,omitempty"`
	// Limit is the limit in words. From names where it was defined: policy, tier or override.
	Limit string `json:"limit"`
	From  string `json:"from"`
	Mode  string `json:"mode"`
	// Source names the decider, such as the bucket; Reason is the reason.
	Source string `json:"source"`
	Reason string `json:"reason"`
	// Key is the hash of the bucket, Consumer the hash of the consumer, in hexadecimal; Consumer is
	// empty without a consumer.
	Key      string `json:"key"`
	Consumer string `json:"consumer,omitempty"`
	// Shown are the parts of the request that the policy set allows to be shown, by name.
	Shown map[string]string `json:"shown,omitempty"`
	// Cost is the number of tokens that the request needed, Left the number in the bucket.
	Cost int64 `json:"cost"`
	Left int64 `json:"left"`
	// Ends is the end of the wait for tokens; nil if a wait would not have helped.
	Ends *time.Time `json:"ends,omitempty"`
	// Count is the number of refusals since the last stored refusal of the same bucket, reason and
	// version.
	Count int64 `json:"count"`
	// Now is the bucket's level at the time of the answer; nil if it is not known.
	Now *Level `json:"now,omitempty"`
	// Settles describes how the policy charges at the time of the answer; nil if costs are known
	// before.
	Settles *policies.Settles `json:"settles,omitempty"`
}

// Level is the level of a bucket, in tokens.
type Level struct {
	Tokens int64 `json:"tokens"`
	Of     int64 `json:"of"`
	// Owed is the number of tokens by which requests have cost more than the bucket had.
	// AdmitsAfterSeconds is the wait until a request like the refused one is admitted. Both are 0
	// if costs are known before.
	Owed               int64   `json:"owed,omitempty"`
	AdmitsAfterSeconds float32 `json:"admits_after_seconds,omitempty"`
}

// Store keeps refusals, the newest first, and the published counts of the heaviest callers.
type Store interface {
	// AppendDecisions stores refusals, sets their IDs, and drops the oldest beyond Kept.
	AppendDecisions(ctx context.Context, list []Decision) error
	// Decisions returns at most limit refusals with an ID below before, the newest first; without
	// before it starts at the newest. The error may be ErrCursor.
	Decisions(ctx context.Context, before string, limit int) ([]Decision, error)
	// Its slots have the published counts of replicas.
	series.Store
}

// Sets provides the versions of the policy set. *policies.Service implements it.
type Sets interface {
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
}

// Encode returns the stored form of the refusal, without its ID: the store puts a number before it,
// and the ID is made from that number.
func (d Decision) Encode() (string, error) {
	d.ID, d.Now, d.Settles = "", nil, nil
	text, err := json.Marshal(d)
	return string(text), err
}

// Decode decodes the stored form: a growing number, a space, and the result of Encode.
func Decode(stored string) (d Decision, err error) {
	stamp, text, _ := strings.Cut(stored, " ")
	number, err := strconv.ParseUint(stamp, 10, 64)
	if err == nil {
		err = json.Unmarshal([]byte(text), &d)
	}
	if err != nil {
		return Decision{}, fmt.Errorf("a kept refusal is damaged: %w", err)
	}
	d.ID = ID(number)
	return d, nil
}

// ID returns the ID of the refusal with a number.
func ID(number uint64) string { return fmt.Sprintf("%016d", number) }

// Number returns the number of an ID. The error is ErrCursor.
func Number(id string) (uint64, error) {
	number, err := strconv.ParseUint(id, 10, 63)
	if err != nil || len(id) != 16 {
		return 0, ErrCursor
	}
	return number, nil
}

// hasConsumer reports whether a node has named a consumer.
func hasConsumer(c *wire.CallerCount) bool { return c.Consumer != (keyhash.Key{}) }
