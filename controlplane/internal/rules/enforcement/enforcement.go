// Package enforcement keeps orders of operators beside the policy set: kill switches, and bans of
// single partition keys. Orders work without the store: a replica that cannot reach the store keeps
// them in memory, sends them to its nodes, and stores them later.
package enforcement

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Reasons for which a store or the service refuses a change. Any other error of a store means that
// the store did not answer.
var (
	// ErrUnknown means that the store has not been reached since the start, so the orders in force
	// are not known.
	ErrUnknown = errs.New(errs.StoreUnavailable,
		"the store has not been reached since the start, so the orders in force are not known here",
		"the store has not been reached since the start, so the orders in force are not known here: "+
			"try again, or replace whatever there is with If-Match: *")
	// ErrTooMany means that there are wire.MaxBans bans.
	ErrTooMany = errs.New(errs.TooManyBans, "cannot add a ban: the maximum is reached", fmt.Sprintf("there are %d "+
		"bans, the maximum: lift a ban, or ban addresses in the policy set", wire.MaxBans))
	// ErrNotBanned means that there is no ban to lift.
	ErrNotBanned = errs.New(errs.NotFound, "the key is not banned", "this key is not banned")
)

// Most is the maximum number of orders.
const Most = wire.MaxOrders

// State is the effect of an order on its policies.
type State string

// Enforce enforces the policies. Shadow lets them decide and count without an effect on requests.
// Off turns them off.
const (
	Enforce State = "enforce"
	Shadow  State = "shadow"
	Off     State = "off"
)

var enforced = map[State]policy.Enforced{
	Enforce: policy.EnforcedAll, Shadow: policy.EnforcedShadow, Off: policy.EnforcedOff,
}

// Order is one kill switch. It takes precedence over the policy set. An order for a policy and a
// tier comes before an order for a policy, then for a tier, then for everything.
type Order struct {
	State State `json:"state"`
	// Percent is the share of the partition keys that the order covers, 1 to 100.
	Percent int `json:"percent"`
	// Policy and Tier limit the order to a policy or a tier; empty means all.
	Policy string `json:"policy,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Reason string `json:"reason"`
	// Expires is the time when the order ends; nil if it lasts until it is lifted.
	Expires *time.Time `json:"expires_at,omitempty"`
	// Since is the time when the order was given. By is the name of the token that gave it.
	Since time.Time `json:"since"`
	By    string    `json:"by"`
}

// Same reports whether two orders have the same meaning, without regard to author and time.
func (o Order) Same(other Order) bool {
	o.Since = time.Time{}
	o.By = ""
	other.Since = time.Time{}
	other.By = ""
	ends := o.Expires == other.Expires || o.Expires != nil && other.Expires != nil && o.Expires.Equal(*other.Expires)
	o.Expires, other.Expires = nil, nil
	return ends && o == other
}

// InForce reports whether the order has not ended by itself.
func (o Order) InForce(now time.Time) bool { return inForce(o.Expires, now) }

// Scope returns in words the policies and tiers that the order covers.
func (o Order) Scope() string {
	parts := []string{}
	if o.Policy != "" {
		parts = append(parts, "policy "+o.Policy)
	}
	if o.Tier != "" {
		parts = append(parts, "tier "+o.Tier)
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, ", ")
}

// Ban refuses the requests of one partition key of a policy.
type Ban struct {
	Policy string `json:"policy"`
	// Key is the keyed hash of the partition key in hexadecimal: the values of the key are not
	// stored.
	Key     string     `json:"key"`
	Reason  string     `json:"reason"`
	Expires *time.Time `json:"expires_at,omitempty"`
	Since   time.Time  `json:"since"`
	By      string     `json:"by"`
	// Revision is the revision of the change that made the ban.
	Revision uint64 `json:"revision"`
}

// InForce reports whether the ban has not ended by itself.
func (b Ban) InForce(now time.Time) bool { return inForce(b.Expires, now) }

// Freed is a bucket that was changed: nodes forget its state. Full is true if the bucket is full
// now.
type Freed struct {
	Bucket   string    `json:"bucket"` // hexadecimal
	Revision uint64    `json:"revision"`
	Full     bool      `json:"full,omitempty"`
	At       time.Time `json:"at"`
}

// Stamp identifies the last change of a list.
type Stamp struct {
	// ID is random: it shows whether a write was made whose answer was lost.
	ID string `json:"id"`
	// Revision is the revision of the change. Time is when it was made, by the clock of the replica
	// that made it. By is the name of the token.
	Revision uint64    `json:"revision"`
	Time     time.Time `json:"time"`
	By       string    `json:"by"`
}

// Orders are all orders, as of a change.
type Orders struct {
	Stamp
	List []Order `json:"list"`
	// Changed has the last change of each scope; a lifted order stays in it for a day. Swept is the
	// revision of the last change that replaced all orders.
	Changed []Changed `json:"changed,omitempty"`
	Swept   uint64    `json:"swept,omitempty"`
}

// Bans are all bans as of a change.
type Bans struct {
	Stamp
	List []Ban `json:"list"`
	// Lifted has the keys whose bans were lifted in the last day.
	Lifted []Lifted `json:"lifted,omitempty"`
}

// FreedBuckets are the buckets that were changed lately, as of a change.
type FreedBuckets struct {
	Stamp
	List []Freed `json:"list"`
}

// Document has all orders and bans. The zero value has none.
type Document struct {
	// Revision grows with each change, and also if the store loses its state, since it is at least
	// the time in milliseconds.
	Revision uint64       `json:"-"`
	Orders   Orders       `json:"orders"`
	Bans     Bans         `json:"bans"`
	Freed    FreedBuckets `json:"freed"`
}

// Write replaces the document of revision Expected, 0 for none.
type Write struct {
	Expected uint64
	Document Document
	// Entries are the audit entries of all changes in the document; they are stored with it.
	Entries []audit.Entry
}

// Store keeps the document. Methods return errs.Conflict unchanged; any other error means that the
// store did not answer.
type Store interface {
	// Enforcement returns the document, the zero Document if there is none. If known is its
	// revision, it returns only the revision.
	Enforcement(ctx context.Context, known uint64) (Document, error)
	// WriteEnforcement replaces the document and stores the entries. The error is errs.Conflict if
	// the stored document is not the expected document.
	WriteEnforcement(ctx context.Context, w Write) error
}

func inForce(expires *time.Time, now time.Time) bool { return expires == nil || expires.After(now) }

// unixMilli returns an expiry in the form of messages, at most a millisecond late.
func unixMilli(expires *time.Time) int64 {
	if expires == nil {
		return 0
	}
	return max(expires.UnixMilli(), 1)
}

// nodeMessage returns the document in the form for nodes.
func (d Document) nodeMessage() ([]byte, error) {
	return d.messageOf(d.Revision, d.Freed.List[max(0, len(d.Freed.List)-wire.MaxFreed):])
}

// messageOf returns the document as of a revision, with a part of the changed buckets.
func (d Document) messageOf(revision uint64, list []Freed) ([]byte, error) {
	m := wire.Enforcement{Revision: revision}
	for _, o := range d.Orders.List {
		m.Orders = append(m.Orders, wire.Order{
			State: enforced[o.State], Percent: uint8(o.Percent), Expires: unixMilli(o.Expires),
			Policy: []byte(o.Policy), Tier: []byte(o.Tier),
		})
	}
	var err error
	m.Bans, err = d.Bans.byKey()
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		freed := wire.Freed{Revision: f.Revision, Full: f.Full}
		freed.Bucket, err = keyhash.Parse(f.Bucket)
		if err != nil {
			return nil, err
		}
		m.Freed = append(m.Freed, freed)
	}
	return wire.AppendEnforcement(nil, &m), nil
}
