package policies

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// Rollback makes the document of an older version the next version. c names the replaced version
// and the author, and may be a dry run; its document is not used. The errors are the errors of Put,
// ErrNotFound, and ErrUnreadable, which wraps the reason why this build cannot read the document.
func (s *Service) Rollback(ctx context.Context, number uint64, c Change) (Outcome, error) {
	v, err := s.store.Load(ctx, number)
	if err != nil {
		return Outcome{}, addNumber(err, number)
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

// Between returns the difference between two versions; version 0 is an empty policy set. Errors:
// ErrNotFound, ErrUnreadable, or the error of the store.
func (s *Service) Between(ctx context.Context, from, to uint64) (Diff, error) {
	before, err := s.readVersion(ctx, from)
	if err != nil {
		return Diff{}, err
	}
	after, err := s.readVersion(ctx, to)
	if err != nil {
		return Diff{}, err
	}
	return Compare(before.Set, after.Set), nil
}

// readVersion returns a version that this build can read.
func (s *Service) readVersion(ctx context.Context, number uint64) (*Compiled, error) {
	if number == 0 {
		return compileVersion(Version{Format: policydoc.YAML, Document: []byte(EmptyDocument)})
	}
	c, err := s.At(ctx, number)
	return c, addNumber(err, number)
}

// addNumber adds the number of the missing version to ErrNotFound.
func addNumber(err error, number uint64) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %d", ErrNotFound, number)
	}
	return err
}

// TakenBack reports whether the rollout of the newest version with this document took it back.
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
