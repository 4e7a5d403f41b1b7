package policies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

// Change is a document that is to become the next version.
type Change struct {
	// Expected is the version that the document replaces; Any replaces any version.
	Expected uint64
	Any      bool
	Document []byte
	Format   policydoc.Format
	// Edit, if not nil, makes the document out of the one that it replaces, and keeps its format.
	// It is called again if Any meets a newer one. Put returns its errors.
	Edit func(document []byte, format policydoc.Format) ([]byte, error)
	// Entry names the author, for the version and the audit; what was before and comes after is
	// filled in.
	Entry audit.Entry
	// Reason begins the new version's summary.
	Reason string
	// Nodes is the share of the nodes that get the new version, in percent; 0 means all, as
	// Everyone does.
	Nodes int
	// AbortIf is the rule of the rollout that begins; see Rollout.
	AbortIf string
	// DryRun checks everything and stores nothing.
	DryRun bool
	// FromFiles: the change comes from the files that Config.Files names. Where there are such, no
	// other change is stored. A first version goes to all nodes, whatever Nodes says.
	FromFiles bool
	// stored: the document is that of an older version, which was accepted then.
	stored bool
}

// Outcome is what a Change did, or would do.
type Outcome struct {
	// Version is the new version's number.
	Version uint64
	// Summary is the new version's.
	Summary string
	// Unchanged: the document is that of the current version, whose number this is, and nothing is
	// stored.
	Unchanged bool
	Diff      Diff
	Set       *policy.Set
	// Rollout is the rollout that begins, nil for a version that all nodes get. Apart are the
	// policies whose buckets its two versions do not share.
	Rollout *Rollout
	Apart   []string
}

// Put validates a change, stores it and puts it into force on this replica. Errors:
// *policydoc.SyntaxError, policy.Problems, errs.Conflict, errs.RolloutUnderWay, errs.KeptInFiles,
// ErrNothingToKeep, or the store's.
func (s *Service) Put(ctx context.Context, c Change) (Outcome, error) {
	return persist(ctx, c.Any, func() (Outcome, error) { return s.put(ctx, c) })
}

// keptInFiles returns the error of a change that has to be made elsewhere.
func keptInFiles(path string) error {
	return errs.New(errs.KeptInFiles, "the policy set is kept in files",
		"the policy set is that of "+path+" (weir serve --policyset): change it there; nothing has been changed. "+
			"Bans, bypasses, limits of single consumers, rollouts and enforcement orders stay with this interface")
}

// mostTries bounds how often a change of whatever is there is made anew because another one came
// between reading the number and storing.
const mostTries = 16

// ErrContended: other changes came first, mostTries times.
var ErrContended = errs.New(errs.StoreUnavailable, "other changes of the policy set come first again and again",
	"others change the policy set at the same time, again and again; nothing has been changed: try again")

// persist makes a change, and makes it anew while others come first if it replaces any version.
func persist[T any](ctx context.Context, replacesAny bool, try func() (T, error)) (T, error) {
	for range mostTries {
		out, err := try()
		if !replacesAny || !errors.Is(err, errs.Conflict) || ctx.Err() != nil {
			return out, err
		}
	}
	var none T
	return none, ErrContended
}

func (s *Service) put(ctx context.Context, c Change) (Outcome, error) {
	if s.files != "" && !c.FromFiles && !c.DryRun {
		return Outcome{}, keptInFiles(s.files)
	}
	state, err := s.settled(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if c.FromFiles && state.Rollout != nil && state.DraftDigest == Digest(c.Document) {
		return Outcome{Version: state.Rollout.Version, Unchanged: true}, nil
	}
	partly := c.Nodes > 0 && c.Nodes < Everyone && !(c.FromFiles && state.Current == 0)
	if err := fits(state, c, partly); err != nil {
		return Outcome{}, err
	}
	c, err = s.edited(ctx, state, c)
	if err != nil {
		return Outcome{}, err
	}
	set, err := s.loadNew(ctx, state, c)
	if err != nil {
		return Outcome{}, err
	}
	before, gone, err := s.currentSet(ctx, state)
	if err != nil {
		return Outcome{}, err
	}
	if same, err := s.isCurrent(ctx, state, c); err != nil || same {
		out := Outcome{Version: state.Current, Unchanged: true, Diff: Compare(set, set), Set: before}
		out.Summary = out.Diff.String()
		if c.Reason != "" {
			out.Summary = fmt.Sprintf("no change: version %d has this document already", state.Current)
		}
		return out, err
	}
	out := Outcome{Version: s.next(state), Diff: Compare(before, set), Set: set}
	out.Summary = c.Reason + out.Diff.String()
	now := s.now().UTC()
	roots, gone := inherit(set, before, gone, now)
	if partly {
		out.Rollout = c.begin(out.Version, state.Current, now)
		out.Apart = Apart(before, set)
	}
	if c.DryRun {
		return out, nil
	}
	v := Version{
		Number: out.Version, Time: now, Author: c.Entry.By, Digest: Digest(c.Document),
		Summary: out.Summary, Format: c.Format, Document: c.Document,
		Roots: roots, Gone: gone,
	}
	c.Entry.Before, c.Entry.After = auditVersion(state.Current, ""), auditVersion(v.Number, v.Summary)
	if partly {
		c.Entry.After = auditBegun(v.Summary, *out.Rollout)
	}
	return out, s.storeNext(ctx, state, v, out, c.Entry)
}

// begin returns the rollout that a change begins.
func (c Change) begin(version, base uint64, now time.Time) *Rollout {
	return &Rollout{Version: version, Base: base, Nodes: c.Nodes, Since: now, By: c.Entry.By, AbortIf: c.AbortIf}
}

// fits returns why a change cannot be made of a state.
func fits(state State, c Change, partly bool) error {
	switch {
	case !c.Any && state.Current != c.Expected:
		return errs.Conflict
	case state.Rollout != nil:
		return underWay(*state.Rollout)
	case partly && state.Current == 0:
		return ErrNothingToKeep
	}
	return nil
}

// edited makes the document of a change that is an edit.
func (s *Service) edited(ctx context.Context, state State, c Change) (Change, error) {
	if c.Edit == nil {
		return c, nil
	}
	written, err := s.written(ctx, state)
	if err != nil {
		return c, err
	}
	c.Format = written.Format
	c.Document, err = c.Edit(written.Document, written.Format)
	return c, err
}

// loadNew reads the document of a change, and refuses what policydoc.Unmeant finds unless the
// version that it replaces has it too: that must not stop a change of another policy.
func (s *Service) loadNew(ctx context.Context, state State, c Change) (*policy.Set, error) {
	set, err := policydoc.Load(c.Document, c.Format)
	if err == nil && !c.stored {
		if unmeant := policydoc.Unmeant(c.Document, c.Format); len(unmeant) > 0 {
			var before Version
			if before, err = s.written(ctx, state); err != nil {
				return nil, err
			}
			unmeant = policydoc.NotIn(unmeant, policydoc.Unmeant(before.Document, before.Format))
			if len(unmeant) > 0 {
				err = &policydoc.Refused{Problems: unmeant}
			}
		}
	}
	if err != nil && (c.Edit != nil || c.FromFiles) {
		return nil, policydoc.WithoutLines(err) // The caller has not seen that text.
	}
	return set, err
}

// isCurrent reports whether a change's document is that of the current version already.
func (s *Service) isCurrent(ctx context.Context, state State, c Change) (bool, error) {
	if state.Digest != Digest(c.Document) {
		return false, nil
	}
	written, err := s.written(ctx, state)
	return written.Format == c.Format, err
}

// Digest returns the Version.Digest of a document.
func Digest(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:])
}

// storeNext stores a new version for all nodes, or for those of a rollout, and puts it into force
// on this replica.
func (s *Service) storeNext(ctx context.Context, from State, v Version, out Outcome, e audit.Entry) error {
	to := from
	to.Newest = v.Number
	if out.Rollout != nil {
		v.Rollout = RolloutUnderWay
		to.Revision++
		to.Rollout = out.Rollout
		if err := s.store.Roll(ctx, Step{From: from, To: to, Versions: []Version{v}, Entry: e}); err != nil {
			return err
		}
		_, _ = s.Refresh(ctx) // Or the next poll finds it.
		return nil
	}
	if err := s.store.Append(ctx, from.Current, v, e); err != nil {
		return err
	}
	to.Current, to.Digest = v.Number, v.Digest
	s.advance(Active{State: to, Current: newCompiled(v, out.Set)})
	return nil
}

// auditVersion is a version in the audit; its document is in the history.
func auditVersion(number uint64, summary string) json.RawMessage {
	return audit.Value(struct {
		Version uint64 `json:"version"`
		Summary string `json:"summary,omitempty"`
	}{number, summary})
}

// currentSet returns the set of the current version, and what is gone there. It is empty if there
// is none, or if this build cannot read it, so that a broken document can always be replaced.
func (s *Service) currentSet(ctx context.Context, state State) (*policy.Set, Gone, error) {
	c, err := s.exact(ctx, state.Current, state.Digest)
	set, err := setOf(c, err)
	if c == nil || err != nil {
		return set, nil, err
	}
	return set, c.Version.Gone, nil
}

// setOf returns the set of a version that was looked up.
func setOf(c *Compiled, err error) (*policy.Set, error) {
	if errors.Is(err, ErrUnreadable) || errors.Is(err, ErrNotFound) {
		return policydoc.Load([]byte(EmptyDocument), policydoc.YAML)
	}
	if err != nil {
		return nil, err
	}
	return c.Set, nil
}
