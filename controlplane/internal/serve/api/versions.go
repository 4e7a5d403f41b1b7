package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
)

// ListVersions lists the versions that are kept, newest first.
func (s *server) ListVersions(
	ctx context.Context, r gen.ListVersionsRequestObject,
) (gen.ListVersionsResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	var before uint64
	if token != "" {
		before, err = strconv.ParseUint(token, 10, 53)
		if err != nil {
			return nil, errToken
		}
	}
	// Read one version more than the page has: it shows whether a page follows.
	timed, cancel := s.atHand(ctx)
	defer cancel()
	versions, away, err := s.config.Policies.List(timed, before, size+1)
	if err != nil {
		return nil, storeFailure(err)
	}
	s.noteHeld(ctx, away, s.config.Hub.Followed())
	answer := gen.ListVersions200JSONResponse{Versions: versions}
	if len(versions) > size {
		answer.Versions = versions[:size]
		answer.Next = pageToken(strconv.FormatUint(versions[size-1].Number, 10))
	}
	if answer.Versions == nil {
		answer.Versions = []policies.Version{}
	}
	return answer, nil
}

// GetVersion answers with a version and its document as it was written.
func (s *server) GetVersion(ctx context.Context, r gen.GetVersionRequestObject) (gen.GetVersionResponseObject, error) {
	timed, cancel := s.atHand(ctx)
	defer cancel()
	v, away, err := s.config.Policies.Load(timed, r.Version)
	if err != nil {
		return nil, storeFailure(err)
	}
	s.noteHeld(ctx, away, s.config.Hub.Followed())
	return gen.GetVersion200JSONResponse{Headers: gen.GetVersion200ResponseHeaders{ETag: etag(v.Number)},
		Body: gen.VersionWithDocument{
			Number: v.Number, Time: v.Time, Author: v.Author, Digest: v.Digest, Summary: v.Summary,
			Rollout: gen.VersionWithDocumentRollout(v.Rollout), Format: v.Format, Text: string(v.Document),
		}}, nil
}

// DiffVersions compares two versions. If the request names no second version, it is the version
// before.
func (s *server) DiffVersions(
	ctx context.Context, r gen.DiffVersionsRequestObject,
) (gen.DiffVersionsResponseObject, error) {
	against := max(r.Version, 1) - 1
	if r.Params.Against != nil {
		against = *r.Params.Against
	}
	diff, err := s.config.Policies.Between(ctx, against, r.Version)
	if err != nil {
		return nil, versionFailure(err)
	}
	s.noteAway(ctx)
	return gen.DiffVersions200JSONResponse{Version: r.Version, Against: against, Summary: diff.String(),
		Diff: diff}, nil
}

// Rollback makes a new version with the document of an old version.
func (s *server) Rollback(ctx context.Context, r gen.RollbackRequestObject) (gen.RollbackResponseObject, error) {
	change, err := changeOf(ctx, "version.rollback", policySetResource,
		terms{match: r.Params.IfMatch, dryRun: r.Params.DryRun})
	if err != nil {
		return nil, err
	}
	out, err := s.config.Policies.Rollback(ctx, r.Version, change)
	answer, err := s.answerChange(ctx, change, out, versionFailure(err))
	return gen.Rollback200JSONResponse{ChangeJSONResponse: answer}, err
}

// versionFailure says which version is not there or cannot be read. That is no fault of the control
// plane.
func versionFailure(err error) error {
	f := &failure{cause: err}
	switch {
	case errors.Is(err, policies.ErrUnreadable):
		f.code = errs.UnreadableVersion
		f.detail = fmt.Sprintf("%v: it was written for another version of weir; nothing has been changed. "+
			"Get it, correct it and put it as a whole", err)
		var problems policy.Problems
		if errors.As(err, &problems) {
			f.problems = problems
			f.detail = "the version was written for another version of weir, " +
				"which this one cannot read for the reasons below; nothing has been changed. " +
				"Get it, correct it and put it as a whole"
		}
		return f
	case errors.Is(err, policies.ErrNotFound):
		f.code = errs.NotFound
		f.detail = err.Error() + fmt.Sprintf("; the newest %d are kept", policies.Kept)
		return f
	case err == nil:
		return nil
	}
	return storeFailure(err)
}
