package policies

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Everyone is the share of all nodes, in percent.
const Everyone = 100

// Reasons for which a rollout is refused.
var (
	// ErrNoRollout means that no rollout is under way.
	ErrNoRollout = errs.New(errs.NoRollout, "no rollout is under way",
		"no rollout is under way; PUT /v1/policyset?nodes=25% begins a rollout")
	// ErrNothingToKeep means that the other nodes would have no version.
	ErrNothingToKeep = errs.New(errs.NothingToKeep, "there is no version for the other nodes to keep",
		"there is no version yet that the other nodes could keep: give the first version to all nodes, without nodes")
)

// underWay returns the error of a change that must wait for the end of a rollout.
func underWay(r Rollout) error {
	text := fmt.Sprintf("version %d is being rolled out to %d %% of the nodes", r.Version, r.Nodes)
	return errs.New(errs.RolloutUnderWay, text, text+" since "+r.Since.Format(time.RFC3339)+
		": promote it (PUT /v1/rollout, weir rollout promote) or take it back"+
		" (DELETE /v1/rollout, weir rollout cancel), and then try again")
}

// Rollout is a version, the draft, that a share of the nodes has while the other nodes keep the
// current version.
type Rollout struct {
	// Version is the number of the draft, Base the number of the current version.
	Version uint64 `json:"version"`
	Base    uint64 `json:"base"`
	// Nodes is the share of the nodes in percent, 1 to 99.
	Nodes int `json:"nodes"`
	// Since is the time when the rollout began, by the clock of the replica that began it. By is
	// the name of the token.
	Since time.Time `json:"since"`
	By    string    `json:"by"`
	// AbortIf is the rule that compares the draft's nodes with the other nodes and takes the draft
	// back; empty for no rule. Package rollouts reads it.
	AbortIf string `json:"abort_if,omitempty"`
}

// sameRollout reports whether two rollouts are equal; nil means no rollout.
func sameRollout(a, b *Rollout) bool {
	if a == nil || b == nil {
		return a == b
	}
	one, other := *a, *b
	since := one.Since.Equal(other.Since)
	one.Since, other.Since = time.Time{}, time.Time{}
	return since && one == other
}

// Includes reports whether a node has the draft. It depends only on a hash of the node's id: the
// same share always includes the same nodes, and a larger share includes all nodes of a smaller
// share.
func (r Rollout) Includes(node string) bool {
	sum := sha256.Sum256([]byte(node))
	percentile, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), Everyone)
	return percentile < uint64(r.Nodes)
}

// Values of Version.Rollout.
const (
	RolloutUnderWay  = "under way"
	RolloutPromoted  = "promoted"
	RolloutTakenBack = "taken back"
)

// State is the stored state: the versions in force.
type State struct {
	// Current is the number of the current version, 0 if there is none. Newest is the highest
	// number that was ever used: the number of a draft that was taken back is not used again.
	Current uint64 `json:"current"`
	Newest  uint64 `json:"newest"`
	// Revision grows with each step of a rollout.
	Revision uint64 `json:"revision"`
	// Rollout is nil if no rollout is under way.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Digest and DraftDigest are the Version.Digest of the current version and of the draft; empty
	// if there is no such version. A store that has gone back may use a number twice, so only
	// number and digest together identify a version.
	Digest      string `json:"-"`
	DraftDigest string `json:"-"`
}

// same reports whether both states have the same versions in force for the same nodes.
func (s State) same(other State) bool {
	return sameRollout(s.Rollout, other.Rollout) && s.Revision == other.Revision &&
		s.Current == other.Current && s.Digest == other.Digest && s.DraftDigest == other.DraftDigest
}

// behind reports whether a store with state s has lost a version, or a step of a rollout, that
// other has.
func (s State) behind(other State) bool {
	if s.Current != other.Current {
		return s.Current < other.Current
	}
	return s.Digest == other.Digest && s.Revision < other.Revision
}

// lacks reports whether a store with state s has the numbers of other's versions, but has lost one
// of the versions.
func (s State) lacks(other State) bool {
	draft := other.Rollout != nil && other.DraftDigest != "" && sameRollout(s.Rollout, other.Rollout)
	return s.Current == other.Current && (other.Digest != "" && s.Digest == "" || draft && s.DraftDigest == "")
}

// reused reports whether other has another version with the number of the current version.
func (s State) reused(other State) bool {
	return s.Current > 0 && s.Current == other.Current && s.Digest != other.Digest
}

// Step is a step of a rollout: its begin, a change, or its end.
type Step struct {
	// From is the expected state of the store, To the state afterwards.
	From, To State
	// Versions are new versions with their documents, and stored versions without a document, whose
	// description is replaced.
	Versions []Version
	Entry    audit.Entry
}

// Active is the versions in force, compiled.
type Active struct {
	State State
	// Current is the current version; nil if there is none.
	Current *Compiled
	// Draft is the version that is rolled out; nil without a rollout.
	Draft *Compiled
}

// Has reports whether a version is in force.
func (a Active) Has(v *Version) bool {
	return a.Current != nil && a.Current.Version.Is(v) || a.Draft != nil && a.Draft.Version.Is(v)
}

// Knows reports whether a version in force has a policy.
func (a Active) Knows(name string) bool {
	for _, c := range []*Compiled{a.Current, a.Draft} {
		if c == nil {
			continue
		}
		if _, found := c.Policy(name); found {
			return true
		}
	}
	return false
}

// HasPolicy reports whether a version is in force and has the policy. wire.AllRequests counts as a
// policy of every version.
func (a Active) HasPolicy(version uint64, name string) bool {
	for _, c := range []*Compiled{a.Current, a.Draft} {
		if c != nil && c.Version.Number == version {
			_, found := c.Policy(name)
			return found || name == wire.AllRequests
		}
	}
	return false
}

// For returns the version for a node; nil if there is none.
func (a Active) For(node string) *Compiled {
	if a.Draft != nil && a.State.Rollout.Includes(node) {
		return a.Draft
	}
	return a.Current
}

// Deciding returns the version in force that decides for a node with a given version, and the other
// version in force, nil if there is none.
func (a Active) Deciding(version uint64) (deciding, other *Compiled) {
	if a.Draft != nil && version == a.Draft.Version.Number {
		return a.Draft, a.Current
	}
	return a.Current, a.Draft
}

// RollChange is a step of a rollout that is under way.
type RollChange struct {
	// Expected is the revision to change; Any changes any revision.
	Expected uint64
	Any      bool
	// Nodes is the share of the nodes that get the draft, in percent: Everyone makes the draft the
	// current version, 0 takes it back.
	Nodes int
	// AbortIf replaces the rule, unless it is nil.
	AbortIf *string
	Entry   audit.Entry
	DryRun  bool
}

// RollOutcome is the result of a RollChange, or of its dry run.
type RollOutcome struct {
	// Rollout has the new share; Revision is the new revision.
	Rollout  Rollout
	Revision uint64
	// Ended is the outcome of the rollout; RolloutUnderWay if it goes on.
	Ended string
	// Diff is the difference for the nodes whose version changes.
	Diff Diff
	// Apart are the policies whose buckets the two versions do not share.
	Apart []string
	// Unlike are the policies that decide different requests in the two versions.
	Unlike map[string]bool
}

// Roll changes the share of the nodes that have the draft, makes the draft the current version, or
// takes it back. Errors: ErrNoRollout, errs.Conflict, or the error of the store.
func (s *Service) Roll(ctx context.Context, c RollChange) (RollOutcome, error) {
	return persist(ctx, c.Any, func() (RollOutcome, error) { return s.rollStep(ctx, c) })
}

func (s *Service) rollStep(ctx context.Context, c RollChange) (RollOutcome, error) {
	state, err := s.settled(ctx)
	switch {
	case err != nil:
		return RollOutcome{}, err
	case state.Rollout == nil:
		return RollOutcome{}, ErrNoRollout
	case !c.Any && c.Expected != state.Revision:
		return RollOutcome{}, errs.Conflict
	}
	was := *state.Rollout
	out, err := s.changeShare(ctx, state, c.Nodes)
	if c.AbortIf != nil {
		out.Rollout.AbortIf = *c.AbortIf
	}
	if err != nil || c.DryRun {
		return out, err
	}
	c.Entry.Before, c.Entry.After = auditShare(was), auditShare(out.Rollout)
	step, err := s.newStep(ctx, state, out, c.Entry)
	if err != nil {
		return out, err
	}
	if err := s.store.Roll(ctx, step); err != nil {
		return out, err
	}
	_, _ = s.Refresh(ctx) // After an error the next poll finds it.
	return out, nil
}

// Rollout returns the rollout under way, with its share and its revision. While the store is away
// it returns the rollout that this replica knows, and the error of the store as away. Errors:
// ErrNoRollout, or the error of the store.
func (s *Service) Rollout(ctx context.Context) (out RollOutcome, away, err error) {
	state, err := s.store.State(ctx)
	if held, _ := s.Active(); err != nil && held.Current != nil {
		state, away, err = held.State, err, nil
	}
	if err != nil {
		return out, nil, err
	}
	if state.Rollout == nil {
		return out, away, ErrNoRollout
	}
	out, err = s.changeShare(ctx, state, state.Rollout.Nodes)
	out.Revision = state.Revision
	return out, away, err
}

// changeShare returns the outcome of a rollout with another share of the nodes.
func (s *Service) changeShare(ctx context.Context, state State, percent int) (RollOutcome, error) {
	was := *state.Rollout
	// Compute the outcome.
	out := RollOutcome{Rollout: was, Revision: state.Revision + 1, Ended: RolloutUnderWay}
	out.Rollout.Nodes = percent
	switch percent {
	case 0:
		out.Ended = RolloutTakenBack
	case Everyone:
		out.Ended = RolloutPromoted
	}
	// Compare the two versions, in the direction of the change.
	before, err := setOf(s.exact(ctx, was.Base, state.Digest))
	if err != nil {
		return out, err
	}
	after, err := setOf(s.exact(ctx, was.Version, state.DraftDigest))
	if err != nil {
		return out, err
	}
	out.Apart, out.Unlike = Apart(before, after), Unlike(before, after)
	if percent < was.Nodes {
		before, after = after, before
	}
	out.Diff = Compare(before, after)
	return out, nil
}

// newStep returns the step that stores an outcome.
func (s *Service) newStep(ctx context.Context, from State, out RollOutcome, e audit.Entry) (Step, error) {
	to := from
	to.Revision = out.Revision
	step := Step{From: from, Entry: e}
	// Compute the new state.
	switch out.Ended {
	case RolloutPromoted:
		to.Current = out.Rollout.Version
		to.Digest = from.DraftDigest
		to.Rollout = nil
		to.DraftDigest = ""
	case RolloutTakenBack:
		to.Rollout, to.DraftDigest = nil, ""
	default:
		to.Rollout = &out.Rollout
	}
	step.To = to
	// At the end of a rollout the draft's description gets the outcome.
	if to.Rollout != nil {
		return step, nil
	}
	draft, err := s.store.Load(ctx, out.Rollout.Version)
	draft.Rollout, draft.Document = out.Ended, nil
	step.Versions = []Version{draft}
	return step, err
}

// auditShare returns a rollout for the audit; auditBegun returns a rollout that begins.
func auditShare(r Rollout) json.RawMessage { return auditBegun("", r) }

func auditBegun(summary string, r Rollout) json.RawMessage {
	return audit.Value(struct {
		Version uint64 `json:"version"`
		Nodes   string `json:"nodes"`
		Summary string `json:"summary,omitempty"`
		AbortIf string `json:"abort_if,omitempty"`
	}{r.Version, fmt.Sprintf("%d%%", r.Nodes), summary, r.AbortIf})
}

// Apart returns the policies whose buckets the two sets do not share, so that each set counts
// alone. Such a policy has another partition, identifies callers differently, counts windows
// instead of tokens or windows of another length, or no longer uses the store.
func Apart(before, after *policy.Set) []string {
	apart := []string{}
	identity := policyIdentity(before) != policyIdentity(after)
	for i := range before.Policies {
		was := &before.Policies[i]
		for k := range after.Policies {
			is := &after.Policies[k]
			if is.Name != was.Name {
				continue
			}
			if isApart(was, is) || identity && was.Mode != policy.ModeLocal && len(was.Partition) > 0 {
				apart = append(apart, is.Name)
			}
		}
	}
	return apart
}

func isApart(was, is *policy.Policy) bool {
	local := was.Mode == policy.ModeLocal
	if local || is.Mode == policy.ModeLocal {
		return local != (is.Mode == policy.ModeLocal)
	}
	return PartitionText(was.Partition) != PartitionText(is.Partition) || areApart(was, is)
}

// areApart reports whether only one of the policies counts windows, or whether a bucket has windows
// of another length.
func areApart(was, is *policy.Policy) bool {
	windowed := was.Counting.Algorithm.Windowed()
	if windowed != is.Counting.Algorithm.Windowed() {
		return true
	}
	if !windowed {
		return false
	}
	for i := range was.Limits {
		for k := range is.Limits {
			one, other := &was.Limits[i], &is.Limits[k]
			if !one.InFlight && !other.InFlight && one.Root == other.Root && one.Window != other.Window {
				return true
			}
		}
	}
	return false
}

// policyIdentity returns the settings of a set that identify callers.
func policyIdentity(set *policy.Set) string {
	return fmt.Sprint(set.Identity.TrustedHops, set.Identity.IPv6Prefix, set.Identity.NotAppended,
		set.Identity.IfSeveral, set.Routing, sourcesText(set.Identity.Consumer))
}
