package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/policy"
)

// VersionsAnswer is a page of versions, newest first; Next leads to the following page and is empty on the last.
type VersionsAnswer struct {
	Versions []policies.Version `json:"versions"`
	Next     string             `json:"next_page_token"`
}

func (s *server) listVersions(c echo.Context) error {
	size, token, err := page(c)
	if err != nil {
		return err
	}
	var before uint64
	if token != "" {
		if before, err = strconv.ParseUint(token, 10, 53); err != nil {
			return errToken
		}
	}
	versions, err := s.Policies.List(c.Request().Context(), before, size+1)
	if err != nil {
		return storeFailure(err)
	}
	answer := VersionsAnswer{Versions: versions}
	if len(versions) > size {
		answer.Versions = versions[:size]
		answer.Next = pageToken(strconv.FormatUint(versions[size-1].Number, 10))
	}
	if answer.Versions == nil {
		answer.Versions = []policies.Version{}
	}
	return c.JSON(http.StatusOK, answer)
}

// VersionAnswer is a version with its document as it was written.
type VersionAnswer struct {
	policies.Version
	Text string `json:"document"`
}

func (s *server) getVersion(c echo.Context) error {
	number, err := versionOf(c)
	if err != nil {
		return err
	}
	v, err := s.Policies.Load(c.Request().Context(), number)
	if err != nil {
		return storeFailure(err)
	}
	c.Response().Header().Set("ETag", etag(v.Number))
	return c.JSON(http.StatusOK, VersionAnswer{v, string(v.Document)})
}

func versionOf(c echo.Context) (uint64, error) {
	number, err := strconv.ParseUint(c.Param("version"), 10, 53)
	if err != nil {
		return 0, badRequest("the version must be a whole number")
	}
	return number, nil
}

// DiffAnswer says what changes from one version to another.
type DiffAnswer struct {
	// Version has changed against Against, which is 0 for an empty policy set.
	Version uint64        `json:"version"`
	Against uint64        `json:"against"`
	Summary string        `json:"summary"`
	Diff    policies.Diff `json:"diff"`
}

// diffVersions compares a version with ?against, which is the one before it if it is left out.
func (s *server) diffVersions(c echo.Context) error {
	number, err := versionOf(c)
	if err != nil {
		return err
	}
	against := max(number, 1) - 1
	if c.QueryParam("against") != "" {
		if against, err = uintParam(c, "against"); err != nil {
			return err
		}
	}
	diff, err := s.Policies.Between(c.Request().Context(), against, number)
	if err != nil {
		return versionFailure(err)
	}
	return c.JSON(http.StatusOK, DiffAnswer{number, against, diff.String(), diff})
}

func (s *server) rollback(c echo.Context) error {
	number, err := versionOf(c)
	if err != nil {
		return err
	}
	change, err := changeOf(c)
	if err != nil {
		return err
	}
	out, err := s.Policies.Rollback(c.Request().Context(), number, change)
	return s.changed(c, change, out, versionFailure(err))
}

// versionFailure says which version is not there or cannot be read. That is no fault of the control plane.
func versionFailure(err error) error {
	f := &failure{cause: err}
	switch {
	case errors.Is(err, policies.ErrUnreadable):
		f.status, f.kind = http.StatusConflict, "unreadable"
		f.detail = fmt.Sprintf("%v: it was written for another version of weir; nothing has been changed. Get it, correct it and put it as a whole", err)
		var problems policy.Problems
		if errors.As(err, &problems) {
			f.problems = problems
			f.detail = "the version was written for another version of weir, which this one cannot read for the reasons below; nothing has been changed. " +
				"Get it, correct it and put it as a whole"
		}
		return f
	case errors.Is(err, policies.ErrNotFound):
		f.status, f.kind = http.StatusNotFound, "not-found"
		f.detail = err.Error() + fmt.Sprintf("; the newest %d are kept", policies.Kept)
		return f
	case err == nil:
		return nil
	}
	return storeFailure(err)
}
