package policies

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// Rollback makes the document of an older version the next one. c names what it replaces, the
// author, and whether only to try; its document is not used. Errors are those of Put, ErrNotFound,
// and ErrUnreadable, which wraps why this build cannot read the document.
func (s *Service) Rollback(ctx context.Context, number uint64, c Change) (Outcome, error) {
	v, err := s.store.Load(ctx, number)
	if err != nil {
		return Outcome{}, which(err, number)
	}
	if _, err := policydoc.Load(v.Document, v.Format); err != nil {
		return Outcome{}, fmt.Errorf("%w: version %d: %w", ErrUnreadable, number, err)
	}
	c.Document = v.Document
	c.Format = v.Format
	c.Edit = nil
	c.stored = true
	c.Reason = fmt.Sprintf("back to version %d: ", number)
	c.Entry.Reason = fmt.Sprintf("back to version %d", number)
	return s.Put(ctx, c)
}

// Between returns what changes from one version to another; version 0 is an empty policy set.
// Errors: ErrNotFound, ErrUnreadable, or the store's.
func (s *Service) Between(ctx context.Context, from, to uint64) (Diff, error) {
	before, err := s.readable(ctx, from)
	if err != nil {
		return Diff{}, err
	}
	after, err := s.readable(ctx, to)
	if err != nil {
		return Diff{}, err
	}
	return Compare(before.Set, after.Set), nil
}

// readable returns a version that this build understands.
func (s *Service) readable(ctx context.Context, number uint64) (*Compiled, error) {
	if number == 0 {
		return compile(Version{Format: policydoc.YAML, Document: []byte(EmptyDocument)})
	}
	c, err := s.At(ctx, number)
	return c, which(err, number)
}

// which adds the number of the missing version to ErrNotFound.
func which(err error, number uint64) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %d", ErrNotFound, number)
	}
	return err
}

// TakenBack reports whether the newest version with a document was taken back by its rollout.
func (s *Service) TakenBack(ctx context.Context, document []byte) (bool, error) {
	list, err := s.store.List(ctx, 0, Kept)
	if err != nil {
		return false, err
	}
	digest := Digest(document)
	for _, v := range list {
		if v.Digest == digest {
			return v.Rollout == RolloutTakenBack, nil
		}
	}
	return false, nil
}
