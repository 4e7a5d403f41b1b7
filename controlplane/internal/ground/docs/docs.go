// Package docs is the port for whole documents: small values that several control planes change,
// each on top of the revision that it has read. Its service knows the meaning of a document.
package docs

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/quota"
)

// Name names a document. The part in braces is its hash tag: the audit's entries of its
// changes have the same, and a server of a Redis Cluster has all of a tag.
type Name string

// The documents that there are.
const (
	Enforcement Name = "{meta}:enforcement" // orders and bans
	Region      Name = "{meta}:region"      // the use of one region
	Regions     Name = "{regions}:document" // which region holds what, in the store of all regions
)

// Doc is a document; the zero one if there is none.
type Doc struct {
	Revision uint64
	Value    []byte
}

// Write replaces the document of revision Expected, 0 for none.
type Write struct {
	Expected uint64
	Doc
	// Entries are kept with the document.
	Entries []audit.Entry
}

// Store keeps documents and records.
type Store interface {
	Records
	// Document returns a document, and the store's own time. It leaves out the value of the
	// revision that is known.
	Document(ctx context.Context, name Name, known uint64) (Doc, quota.Instant, error)
	// WriteDocument replaces a document and keeps the entries, or none of it. The error is
	// errs.Conflict if the stored document is not the expected one.
	WriteDocument(ctx context.Context, name Name, w Write) error
}

// Cell is a document without entries, whose revisions count its changes. It implements
// regions.Cell.
type Cell struct {
	Store
	Name Name
}

// Load returns the value, nil if there is none yet, with its revision and the store's own time.
func (c Cell) Load(ctx context.Context) (value []byte, revision uint64, now quota.Instant, err error) {
	d, now, err := c.Document(ctx, c.Name, 0)
	return d.Value, d.Revision, now, err
}

// Swap stores a value if the revision still is the newest, and reports whether it did.
func (c Cell) Swap(ctx context.Context, revision uint64, value []byte) (bool, error) {
	err := c.WriteDocument(ctx, c.Name, Write{Expected: revision, Doc: Doc{revision + 1, value}})
	if errors.Is(err, errs.Conflict) {
		return false, nil
	}
	return err == nil, err
}
