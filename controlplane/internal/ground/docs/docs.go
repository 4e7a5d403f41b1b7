// Package docs is the port for documents and records. Documents are small values that several
// control planes change, each on top of the revision that it has read. The service that owns a
// document knows its meaning.
package docs

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/quota"
)

// Name is the name of a document. The part in braces is its hash tag. The audit entries of its
// changes have the same tag, so one server of a Redis Cluster stores both.
type Name string

// These are all documents.
const (
	Enforcement Name = "{meta}:enforcement" // orders and bans
	Region      Name = "{meta}:region"      // the use of one region
	Regions     Name = "{regions}:document" // the shares of all regions, in their common store
)

// Doc is a document. The zero value means that there is none.
type Doc struct {
	Revision uint64
	Value    []byte
}

// Write replaces a document whose revision is Expected; 0 if there is none yet.
type Write struct {
	Expected uint64
	Doc
	// Entries are the audit entries that are stored with the document.
	Entries []audit.Entry
}

// Store stores documents and records.
type Store interface {
	Records
	// Document returns a document and the store's time. If the document still has the revision
	// known, it returns no value.
	Document(ctx context.Context, name Name, known uint64) (Doc, quota.Instant, error)
	// WriteDocument replaces a document and stores its entries, both or neither. It returns
	// errs.Conflict if the stored document does not have the expected revision.
	WriteDocument(ctx context.Context, name Name, w Write) error
}

// Cell is a document without audit entries whose revision counts its changes. It implements
// regions.Cell.
type Cell struct {
	Store
	Name Name
}

// Load returns the value (nil if there is none yet), its revision and the store's time.
func (c Cell) Load(ctx context.Context) (value []byte, revision uint64, now quota.Instant, err error) {
	d, now, err := c.Document(ctx, c.Name, 0)
	return d.Value, d.Revision, now, err
}

// Swap stores a value if the document still has the revision, and reports whether it did.
func (c Cell) Swap(ctx context.Context, revision uint64, value []byte) (bool, error) {
	err := c.WriteDocument(ctx, c.Name, Write{Expected: revision, Doc: Doc{revision + 1, value}})
	if errors.Is(err, errs.Conflict) {
		return false, nil
	}
	return err == nil, err
}
