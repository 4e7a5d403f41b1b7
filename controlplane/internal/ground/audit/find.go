package audit

import (
	"context"
	"strings"
	"time"
)

// These are the numbers of entries that Find reads at a time if it filters them, and at most for
// one answer.
const (
	chunk   = 1000
	maxRead = 5000
)

// Query selects entries. A zero field selects all entries.
type Query struct {
	// Before is the ID of an entry. The query selects older entries.
	Before string
	// Since is the earliest time.
	Since time.Time
	// By is the name of a token.
	By string
	// Resource is a resource, including everything below it. A slash at the end makes no
	// difference.
	Resource string
}

// wantsEntry reports whether the query selects an entry.
func (q Query) wantsEntry(e Entry) bool {
	if q.By != "" && e.By != q.By {
		return false
	}
	below, found := strings.CutPrefix(e.Resource, strings.TrimSuffix(q.Resource, "/"))
	return q.Resource == "" || found && (below == "" || below[0] == '/')
}

// Find returns at most limit entries, newest first, and the cursor of the next page, which is empty
// at the end. It reads a bounded number of entries, so a page can have fewer than limit entries, or
// none, although more follow. It returns ErrCursor or an error of the store.
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
			if q.wantsEntry(e) {
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
