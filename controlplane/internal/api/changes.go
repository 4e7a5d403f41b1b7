package api

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/changes"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
)

const (
	// maxFollowers is how many may wait for changes at a replica; one more is asked to come back
	// after followLater.
	maxFollowers = 256
	followLater  = 5 * time.Second
	// countsEvery is how often the topic of counts changes.
	countsEvery = 5 * time.Second
)

// GetChanges answers as soon as something has changed since the caller's cursor.
func (s *server) GetChanges(
	ctx context.Context, r gen.GetChangesRequestObject,
) (gen.GetChangesResponseObject, error) {
	now, seen := s.revisions(), changes.Revisions{}
	changed := changes.Topics[:]
	if r.Params.Since != "" {
		var err error
		if seen, err = changes.Parse(r.Params.Since); err != nil {
			return nil, badRequest("%v", err)
		}
		if now, err = s.follow(ctx, seen, r.Params.Wait); err != nil {
			return nil, err
		}
		changed = now.Since(seen)
	}
	answer := gen.GetChanges200JSONResponse{Cursor: now.String(), Changed: []gen.ChangesChanged{}}
	for _, topic := range changed {
		answer.Changed = append(answer.Changed, gen.ChangesChanged(topic))
	}
	return answer, nil
}

// follow waits for a change, for so many seconds. The end of the process ends it.
func (s *server) follow(ctx context.Context, seen changes.Revisions, seconds int32) (changes.Revisions, error) {
	if !s.followers.Take() {
		return seen, &failure{code: errs.TooManyRequests, detail: "too many wait for changes", wait: followLater}
	}
	defer s.followers.Leave()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	defer context.AfterFunc(s.config.Stopping, cancel)()
	return changes.Wait(ctx, seen, s.revisions), nil
}

// revisions are those that this replica holds.
func (s *server) revisions() changes.Revisions {
	active, _ := s.config.Policies.Active()
	sets := fnv.New64a()
	for _, part := range []string{
		active.State.Digest, active.State.DraftDigest, etag(active.State.Current), etag(active.State.Revision),
	} {
		_, _ = sets.Write([]byte(part)) // It never fails.
	}
	return changes.Revisions{
		sets.Sum64(), s.config.Enforcement.Revision(), s.config.Consumers.Revision(), s.config.Penalties.Revision(),
		s.config.Nodes.Changed(), uint64(s.config.Now().UnixNano()) / uint64(countsEvery),
	}
}
