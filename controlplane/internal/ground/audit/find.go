package audit

import (
	"context"
	"strings"
	"time"
)

// How many entries are read at a time if some are left out, and how many for one answer.
const (
	chunk   = 1000
	maxRead = 5000
)

// Query selects entries. A zero field selects all.
type Query struct {
	// Before is the ID of an entry; it selects older ones.
	Before string
	// Since is the earliest time.
	Since time.Time
	// By is the name of a token.
	By string
	// Resource is a resource with everything below; a slash at the end makes no difference.
	Resource string
}

func (q Query) wants(e Entry) bool {
	if q.By != "" && e.By != q.By {
		return false
	}
	below, found := strings.CutPrefix(e.Resource, strings.TrimSuffix(q.Resource, "/"))
	return q.Resource == "" || found && (below == "" || below[0] == '/')
}

// Find returns at most limit entries, newest first, and where to go on, empty at the end. It reads
// a bounded number of entries, so the answer may have fewer than limit, or none, although there are
// more. Errors: ErrCursor, or the store's.
func Find(ctx context.Context, store Store, q Query, limit int) (found []Entry, next string, err error) {
	size := chunk
	if q.By == "" && q.Resource == "" {
		size = limit + 1
	}
	for read := 0; read < maxRead; read += size {
		page, err := store.Audit(ctx, q.Before, size)
		if err != nil {
			return nil, "", err
		}
		for _, e := range page {
			if e.At.Before(q.Since) {
				return found, "", nil
			}
			if len(found) == limit {
				return found, found[limit-1].ID, nil
			}
			if q.wants(e) {
				found = append(found, e)
			}
			q.Before = e.ID
		}
		if len(page) < size {
			return found, "", nil
		}
	}
	return found, q.Before, nil
}
