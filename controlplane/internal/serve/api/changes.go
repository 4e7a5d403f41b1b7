package api

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

const (
	// maxFollowers is the largest number of callers that wait for changes at a replica. A further
	// caller is refused until followLater.
	maxFollowers = 256
	followLater  = 5 * time.Second
	// countsEvery is the period of changes of the topic of counts.
	countsEvery = 5 * time.Second
)

// GetChanges answers as soon as something has changed since the caller's cursor.
func (s *server) GetChanges(
	ctx context.Context, r gen.GetChangesRequestObject,
) (gen.GetChangesResponseObject, error) {
	now, seen := s.currentRevisions(), revisions{}
	changed := topics[:]
	if r.Params.Since != "" {
		var err error
		if seen, err = parseCursor(r.Params.Since); err != nil {
			return nil, badRequest("%v", err)
		}
		if now, err = s.awaitChange(ctx, seen, r.Params.Wait); err != nil {
			return nil, err
		}
		changed = now.changedSince(seen)
	}
	answer := gen.GetChanges200JSONResponse{Cursor: now.String(), Changed: []gen.ChangesChanged{}}
	for _, one := range changed {
		answer.Changed = append(answer.Changed, gen.ChangesChanged(one))
	}
	return answer, nil
}

// awaitChange waits for a change, at most the given seconds. It returns at once when the process
// stops.
func (s *server) awaitChange(ctx context.Context, seen revisions, seconds int32) (revisions, error) {
	if !s.followers.Take() {
		return seen, &failure{code: errs.TooManyRequests, detail: "too many wait for changes", wait: followLater}
	}
	defer s.followers.Leave()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	defer context.AfterFunc(s.config.Stopping, cancel)()
	return awaitChange(ctx, seen, s.currentRevisions), nil
}

// currentRevisions returns the revisions that this replica holds.
func (s *server) currentRevisions() revisions {
	active, _ := s.config.Policies.Active()
	sets := fnv.New64a()
	for _, part := range []string{
		active.State.Digest, active.State.DraftDigest, etag(active.State.Current), etag(active.State.Revision),
	} {
		_, _ = sets.Write([]byte(part)) // It never fails.
	}
	return revisions{
		sets.Sum64(), s.config.Enforcement.Revision(), s.config.Consumers.Revision(), s.config.Penalties.Revision(),
		s.config.Nodes.Changed(), uint64(s.config.Now().UnixNano()) / uint64(countsEvery),
	}
}

// topic is something that changes: a screen that hears of it need not ask for everything again.
type topic string

// topics lists all topics in the order of revisions: the policy set and its rollout, enforcement
// and bans, consumers, penalties, the nodes with their versions and states, and the counts.
var topics = [...]topic{"policyset", "enforcement", "consumers", "penalties", "nodes", "counts"}

// nodesTopic is the index of the nodes among the topics.
const nodesTopic = 4

const (
	// lookEvery is the period at which a waiting reader's revisions are compared.
	lookEvery = 200 * time.Millisecond
	// nodesEvery is the shortest wait of a reader if only nodes have changed. So a thousand nodes
	// that acknowledge a version cause only a few answers.
	nodesEvery = time.Second
)

// revisions have a number for each topic, which differs after each change of the topic. Replicas
// may have different numbers for nodes. Then a reader that reaches both replicas gets this topic
// once in nodesEvery.
type revisions [len(topics)]uint64

// errCursor is the error for a text that String has not written.
var errCursor = errors.New("since must be the cursor of an earlier answer")

// String encodes the revisions as a cursor.
func (r revisions) String() string {
	var b strings.Builder
	for i, n := range r {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.FormatUint(n, 10))
	}
	return b.String()
}

// parseCursor decodes a cursor. The error describes a valid cursor.
func parseCursor(cursor string) (r revisions, err error) {
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

// changedSince returns the topics whose revisions differ from earlier.
func (r revisions) changedSince(earlier revisions) []topic {
	changed := []topic{}
	for i, one := range topics {
		if r[i] != earlier[i] {
			changed = append(changed, one)
		}
	}
	return changed
}

// awaitChange returns the revisions as soon as they differ from seen, or when ctx ends. If only the
// nodes differ, it waits at least nodesEvery.
func awaitChange(ctx context.Context, seen revisions, read func() revisions) revisions {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for waited := time.Duration(0); ; waited += lookEvery {
		now := read()
		others := now
		others[nodesTopic] = seen[nodesTopic]
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
