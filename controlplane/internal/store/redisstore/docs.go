package redisstore

import (
	"context"
	_ "embed" // for the script
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/document.lua
var documentScript string

var useDocument = redis.NewScript(auditScript + documentScript)

// docKeys returns the keys of a document and of its audit list.
func docKeys(name docs.Name) []string {
	tag, _, _ := strings.Cut(strings.TrimPrefix(string(name), "{"), "}")
	return []string{"weir:" + string(name), auditKey(tag)}
}

// Document implements docs.Store.
func (s *Store) Document(ctx context.Context, name docs.Name, known uint64) (d docs.Doc, _ quota.Instant, err error) {
	keys := docKeys(name)
	reply, err := useDocument.Run(ctx, s.client, keys, strconv.FormatUint(known, 10)).StringSlice()
	if err == nil && len(reply) != 3 {
		err = fmt.Errorf("cannot read %s: the answer has %d values", keys[0], len(reply))
	}
	if err != nil {
		return d, 0, err
	}
	d.Revision, err = strconv.ParseUint(reply[0], 10, 64)
	if err != nil {
		return d, 0, fmt.Errorf("cannot read the revision of %s: %w", keys[0], err)
	}
	if d.Revision != known {
		d.Value = []byte(reply[1])
	}
	now, err := strconv.ParseInt(reply[2], 10, 64)
	return d, quota.Instant(now), err
}

// WriteDocument implements docs.Store.
func (s *Store) WriteDocument(ctx context.Context, name docs.Name, w docs.Write) error {
	args := []any{
		strconv.FormatUint(w.Expected, 10), strconv.FormatUint(w.Revision, 10), w.Value, audit.Kept,
	}
	for _, e := range w.Entries {
		entry, err := e.Encode()
		if err != nil {
			return err
		}
		args = append(args, entry)
	}
	done, err := useDocument.Run(ctx, s.client, docKeys(name), args...).Int()
	if err == nil && done != 1 {
		err = errs.Conflict
	}
	return err
}
