// Package decisions knows which callers the nodes have limited lately and which make the most
// requests. It works from samples that nodes report, in bounded memory, and without any API key.
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
	// Kept is how many refusals a store keeps.
	Kept = 10_000
	// remembered is how many refusals a replica keeps itself, for when the store is away.
	remembered = 1000
	// Age is how long refusals are shown.
	Age = time.Hour
	// A bucket that is refused for the same reason by the same version again within quiet is kept
	// once more when that is over, or when its caller is asked for. A replica keeps at most
	// perSecond refusals a second, and at most pairPerSecond of one policy and tier.
	quiet         = 10 * time.Second
	maxQuiet      = 4096
	perSecond     = 100
	pairPerSecond = 25
)

// ErrCursor: the cursor is not one that an answer contained.
var ErrCursor = errors.New("the cursor is not the ID of a refusal")

// Decision is one refusal that a node reported, in the words of the policy set that decided it.
type Decision struct {
	// ID is the store's; IDs are in the order of the reports.
	ID string `json:"id"`
	// At is when the request was refused, to about a second.
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	// Version is that of the policy set. LimitIndex is the limit's index among all of its limits.
	Version    uint64 `json:"version"`
	LimitIndex uint32 `json:"limit_index"`
	Policy     string `json:"policy"`
	// Tier is the caller's, empty if the policy does not go by tier.
	Tier string `json:"tier,omitempty"`
	// Limit is the limit in words. From is where it was defined: policy, tier or override.
	Limit string `json:"limit"`
	From  string `json:"from"`
	Mode  string `json:"mode"`
	// Source is what decided and Reason why.
	Source string `json:"source"`
	Reason string `json:"reason"`
	// Key is the bucket's hash and Consumer the consumer's, in hexadecimal; Consumer is empty
	// without one.
	Key      string `json:"key"`
	Consumer string `json:"consumer,omitempty"`
	// Shown are the parts of the request that the policy set allows to be shown, by name.
	Shown map[string]string `json:"shown,omitempty"`
	// Cost is the tokens that the request needed, Left those in the bucket then.
	Cost int64 `json:"cost"`
	Left int64 `json:"left"`
	// Ends is when the wait would have been over; nil if waiting would not have helped.
	Ends *time.Time `json:"ends,omitempty"`
	// Count is how many refusals of the bucket nodes had counted since the one before it of the
	// same bucket, reason and version.
	Count int64 `json:"count"`
	// Now is what the bucket holds at the time of the answer, nil where that is not known.
	Now *Level `json:"now,omitempty"`
	// Settles is how the policy charges at the time of the answer, nil if costs are known before.
	Settles *policies.Settles `json:"settles,omitempty"`
}

// Level is what a bucket holds.
type Level struct {
	Tokens int64 `json:"tokens"`
	Of     int64 `json:"of"`
	// Owed are tokens that requests have cost beyond what the bucket can hold, AdmitsAfterSeconds
	// the wait until a request like the refused one is let in. They are 0 where costs are known
	// before.
	Owed               int64   `json:"owed,omitempty"`
	AdmitsAfterSeconds float32 `json:"admits_after_seconds,omitempty"`
}

// Store keeps refusals, newest first, and what replicas publish about the heaviest callers.
type Store interface {
	// AppendDecisions keeps refusals, gives them IDs, and drops those beyond Kept.
	AppendDecisions(ctx context.Context, list []Decision) error
	// Decisions returns at most limit refusals with an ID below before, newest first; the newest if
	// before is empty. The error may be ErrCursor.
	Decisions(ctx context.Context, before string, limit int) ([]Decision, error)
	// Its slots keep what replicas publish.
	series.Store
}

// Sets are the versions of the policy set. *policies.Service implements it.
type Sets interface {
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
}

// Encode returns the refusal as stores keep it, without its ID, which is made of the number that
// the store puts before it.
func (d Decision) Encode() (string, error) {
	d.ID, d.Now, d.Settles = "", nil, nil
	text, err := json.Marshal(d)
	return string(text), err
}

// Decode reads what a store keeps: a growing number, a space, and the output of Encode.
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

// Number returns the number that an ID is made of. The error is ErrCursor.
func Number(id string) (uint64, error) {
	number, err := strconv.ParseUint(id, 10, 63)
	if err != nil || len(id) != 16 {
		return 0, ErrCursor
	}
	return number, nil
}

// hasConsumer reports whether a node named a consumer.
func hasConsumer(c *wire.CallerCount) bool { return c.Consumer != (keyhash.Key{}) }
