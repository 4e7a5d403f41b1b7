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
	// Edit, if not nil, makes the new document from the current document, and keeps its format.
	// With Any it is called again if there is a newer version. Put returns its errors.
	Edit func(document []byte, format policydoc.Format) ([]byte, error)
	// Entry names the author, for the version and the audit; Put fills in the rest.
	Entry audit.Entry
	// Reason begins the new version's summary.
	Reason string
	// Nodes is the share of the nodes that get the new version, in percent; 0 and Everyone mean all
	// nodes.
	Nodes int
	// AbortIf is the rule of the rollout that begins; see Rollout.
	AbortIf string
	// DryRun checks everything and stores nothing.
	DryRun bool
	// FromFiles is true if the change comes from the files of Config.Files. If that is set, no
	// other change is stored. A first version goes to all nodes, whatever Nodes is.
	FromFiles bool
	// stored is true for the document of an older version, which was accepted then.
	stored bool
}

// Outcome is the result of a Change, or of its dry run.
type Outcome struct {
	// Summary is the summary of the new version.
	Version uint64
	// Summary is the new version's.
	Summary string
	// Unchanged is true if the current version has this document already: nothing is stored, and
	// Version is the number of the current version.
	Unchanged bool
	Diff      Diff
	Set       *policy.Set
	// Rollout is the rollout that begins; nil if all nodes get the version. Apart are the policies
	// whose buckets the two versions do not share.
	Rollout *Rollout
	Apart   []string
}

// Put validates a change, stores it and puts it into force on this replica. Errors:
// *policydoc.SyntaxError, policy.Problems, errs.Conflict, errs.RolloutUnderWay, errs.KeptInFiles,
// ErrNothingToKeep, or the error of the store.
func (s *Service) Put(ctx context.Context, c Change) (Outcome, error) {
	return persist(ctx, c.Any, func() (Outcome, error) { return s.putChange(ctx, c) })
}

// keptInFiles returns the error of a change that must be made in the files.
func keptInFiles(path string) error {
	return errs.New(errs.KeptInFiles, "the policy set is kept in files",
		"the policy set is kept in "+path+" (weir serve --policyset): change it there; nothing has been changed. "+
			"Bans, bypasses, limits of single consumers, rollouts and enforcement orders stay with this interface")
}

// mostTries bounds the attempts of a change of any version when other changes are stored in
// between.
const mostTries = 16

// ErrContended means that other changes were stored first, mostTries times.
var ErrContended = errs.New(errs.StoreUnavailable, "other changes of the policy set were made first, again and again",
	"other changes of the policy set were made first, again and again; nothing has been changed: try again")

// persist makes a change. If the change replaces any version, persist tries again when another
// change was stored first.
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

func (s *Service) putChange(ctx context.Context, c Change) (Outcome, error) {
	// Check that the change may be made now.
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
	if err := checkState(state, c, partly); err != nil {
		return Outcome{}, err
	}
	// Make the new document. Read the new and the current document.
	c, err = s.applyEdit(ctx, state, c)
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
	// The current version may have this document already.
	if same, err := s.isCurrent(ctx, state, c); err != nil || same {
		return unchanged(state, c, set, before), err
	}
	// Describe the change, and carry over the roots of the limits.
	out := Outcome{Version: s.nextNumber(state), Diff: Compare(before, set), Set: set}
	out.Summary = c.Reason + out.Diff.String()
	now := s.now().UTC()
	roots, gone := inherit(set, before, gone, now)
	if partly {
		out.Rollout = c.rollout(out.Version, state.Current, now)
		out.Apart = Apart(before, set)
	}
	if c.DryRun {
		return out, nil
	}
	// Store the version and the audit entry.
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

// unchanged returns the outcome of a change whose document the current version already has.
func unchanged(state State, c Change, set, before *policy.Set) Outcome {
	out := Outcome{Version: state.Current, Unchanged: true, Diff: Compare(set, set), Set: before}
	out.Summary = out.Diff.String()
	if c.Reason != "" {
		out.Summary = fmt.Sprintf("no change: version %d has this document already", state.Current)
	}
	return out
}

// rollout returns the rollout that a change begins.
func (c Change) rollout(version, base uint64, now time.Time) *Rollout {
	return &Rollout{Version: version, Base: base, Nodes: c.Nodes, Since: now, By: c.Entry.By, AbortIf: c.AbortIf}
}

// checkState returns the reason why a change cannot be made in a state; nil if it can.
func checkState(state State, c Change, partly bool) error {
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

// applyEdit makes the document of a change with an Edit.
func (s *Service) applyEdit(ctx context.Context, state State, c Change) (Change, error) {
	if c.Edit == nil {
		return c, nil
	}
	written, err := s.currentVersion(ctx, state)
	if err != nil {
		return c, err
	}
	c.Format = written.Format
	c.Document, err = c.Edit(written.Document, written.Format)
	return c, err
}

// loadNew reads the document of a change. It refuses the problems that policydoc.Unmeant finds,
// unless the replaced version has the same problem: a change of another policy must still be
// possible.
func (s *Service) loadNew(ctx context.Context, state State, c Change) (*policy.Set, error) {
	set, err := policydoc.Load(c.Document, c.Format)
	if err == nil && !c.stored {
		if unmeant := policydoc.Unmeant(c.Document, c.Format); len(unmeant) > 0 {
			var before Version
			if before, err = s.currentVersion(ctx, state); err != nil {
				return nil, err
			}
			unmeant = policydoc.NotIn(unmeant, policydoc.Unmeant(before.Document, before.Format))
			if len(unmeant) > 0 {
				err = &policydoc.Refused{Problems: unmeant}
			}
		}
	}
	if err != nil && (c.Edit != nil || c.FromFiles) {
		return nil, policydoc.WithoutLines(err) // The caller has not seen this text.
	}
	return set, err
}

// isCurrent reports whether the current version already has the document of a change.
func (s *Service) isCurrent(ctx context.Context, state State, c Change) (bool, error) {
	if state.Digest != Digest(c.Document) {
		return false, nil
	}
	written, err := s.currentVersion(ctx, state)
	return written.Format == c.Format, err
}

// Digest returns the Version.Digest of a document.
func Digest(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:])
}

// storeNext stores a new version for all nodes, or for the nodes of a rollout, and puts it into
// force on this replica.
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
		_, _ = s.Refresh(ctx) // After an error the next poll finds it.
		return nil
	}
	if err := s.store.Append(ctx, from.Current, v, e); err != nil {
		return err
	}
	to.Current, to.Digest = v.Number, v.Digest
	s.advance(Active{State: to, Current: newCompiled(v, out.Set)})
	return nil
}

// auditVersion returns a version for the audit; its document is in the history.
func auditVersion(number uint64, summary string) json.RawMessage {
	return audit.Value(struct {
		Version uint64 `json:"version"`
		Summary string `json:"summary,omitempty"`
	}{number, summary})
}

// currentSet returns the set of the current version, and the limits that are gone. The set is empty
// if there is no version, or if this build cannot read it, so that a broken document can always be
// replaced.
func (s *Service) currentSet(ctx context.Context, state State) (*policy.Set, Gone, error) {
	c, err := s.exact(ctx, state.Current, state.Digest)
	set, err := setOf(c, err)
	if c == nil || err != nil {
		return set, nil, err
	}
	return set, c.Version.Gone, nil
}

// setOf returns the set of a version that At or exact returned, or the empty set.
func setOf(c *Compiled, err error) (*policy.Set, error) {
	if errors.Is(err, ErrUnreadable) || errors.Is(err, ErrNotFound) {
		return policydoc.Load([]byte(EmptyDocument), policydoc.YAML)
	}
	if err != nil {
		return nil, err
	}
	return c.Set, nil
}
