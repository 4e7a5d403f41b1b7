// Package changes says what has changed in the control plane since a reader last looked, as soon as
// something has, so that a screen need not ask for everything again and again.
package changes

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Topic is something that changes.
type Topic string

// Topics are all topics, in the order of Revisions: the policy set and its rollout, enforcement and
// bans, consumers, penalties, what nodes have applied and how they decide, and what was counted.
var Topics = [...]Topic{"policyset", "enforcement", "consumers", "penalties", "nodes", "counts"}

// nodes is the index of the nodes among the topics.
const nodes = 4

const (
	// lookEvery is how often a waiting reader's revisions are compared.
	lookEvery = 200 * time.Millisecond
	// nodesEvery is for how long at least a reader waits if only nodes have changed: so a thousand
	// that acknowledge a version are a few answers.
	nodesEvery = time.Second
)

// Revisions are a number for each topic, which is another one after each change. Replicas may have
// different numbers for nodes; then a reader that reaches both hears of them once in nodesEvery.
type Revisions [len(Topics)]uint64

// errCursor: a text is not of String.
var errCursor = errors.New("since must be the cursor of an earlier answer")

// String is the revisions as a cursor.
func (r Revisions) String() string {
	var b strings.Builder
	for i, n := range r {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.FormatUint(n, 10))
	}
	return b.String()
}

// Parse reads a cursor. The error says what it must be.
func Parse(cursor string) (r Revisions, err error) {
	parts := strings.Split(cursor, ".")
	if len(parts) != len(r) {
		return r, errCursor
	}
	for i, part := range parts {
		if r[i], err = strconv.ParseUint(part, 10, 64); err != nil {
			return r, errCursor
		}
	}
	return r, nil
}

// Since returns the topics in which the revisions differ from earlier ones.
func (r Revisions) Since(earlier Revisions) []Topic {
	changed := []Topic{}
	for i, topic := range Topics {
		if r[i] != earlier[i] {
			changed = append(changed, topic)
		}
	}
	return changed
}

// Wait returns the revisions as soon as they differ from those that a reader has, or when ctx ends.
func Wait(ctx context.Context, seen Revisions, read func() Revisions) Revisions {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for waited := time.Duration(0); ; waited += lookEvery {
		now := read()
		others := now
		others[nodes] = seen[nodes]
		if others != seen || now != seen && waited >= nodesEvery {
			return now
		}
		select {
		case <-ctx.Done():
			return now
		case <-tick.C:
		}
	}
}
