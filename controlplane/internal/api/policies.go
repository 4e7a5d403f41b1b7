package api

import (
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
)

const (
	policiesPath = "/v1/policies/"
	// mergePatch is the media type of RFC 7396.
	mergePatch = "application/merge-patch+json"
)

// policyName is the last part of the path.
func policyName(c echo.Context) (string, error) {
	// Not by the router's parameter, which is decoded already or not, as the path may be.
	name, err := url.PathUnescape(strings.TrimPrefix(c.Request().URL.EscapedPath(), policiesPath))
	if err != nil || name == "" {
		return "", badRequest("the path must end with a policy's name")
	}
	return name, nil
}

// getPolicy answers with JSON, or with YAML if the client asks for that by name. The ETag is the whole policy set's.
func (s *server) getPolicy(c echo.Context) error {
	name, err := policyName(c)
	if err != nil {
		return err
	}
	v, err := s.Policies.Newest(c.Request().Context())
	if err != nil {
		return storeFailure(err)
	}
	want := policydoc.JSON
	if accepts(c.Request(), policydoc.YAML) && !accepts(c.Request(), policydoc.JSON) {
		want = policydoc.YAML
	}
	doc, err := policydoc.Policy(v.Document, v.Format, name, want)
	if err != nil {
		return err
	}
	if described(c, v.Number) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.Blob(http.StatusOK, string(want), doc)
}

// putPolicy replaces a policy or adds it at the end.
func (s *server) putPolicy(c echo.Context) error {
	return s.editPolicy(c, func(name string) (edit, error) {
		body, bodyFormat, err := s.document(c)
		return func(doc []byte, format policydoc.Format) ([]byte, error) {
			return policydoc.PutPolicy(doc, format, name, body, bodyFormat)
		}, err
	})
}

// patchPolicy changes a policy by a JSON merge patch.
func (s *server) patchPolicy(c echo.Context) error {
	return s.editPolicy(c, func(name string) (edit, error) {
		if err := isPatch(c); err != nil {
			return nil, err
		}
		patch, err := s.body(c, policydoc.MaxBytes)
		return func(doc []byte, format policydoc.Format) ([]byte, error) {
			return policydoc.PatchPolicy(doc, format, name, patch)
		}, err
	})
}

func (s *server) deletePolicy(c echo.Context) error {
	return s.editPolicy(c, func(name string) (edit, error) {
		return func(doc []byte, format policydoc.Format) ([]byte, error) {
			return policydoc.DeletePolicy(doc, format, name)
		}, nil
	})
}

// edit makes the next policy set's document out of the present one.
type edit = func(doc []byte, format policydoc.Format) ([]byte, error)

// editPolicy changes one policy of the set. The set as a whole gets a new version, and is checked as a whole: paths in problems
// are those of the set.
func (s *server) editPolicy(c echo.Context, read func(name string) (edit, error)) error {
	name, err := policyName(c)
	if err != nil {
		return err
	}
	change, err := changeOf(c)
	if err != nil {
		return err
	}
	if change.Edit, err = read(name); err != nil {
		return err
	}
	out, err := s.Policies.Put(c.Request().Context(), change)
	return s.changed(c, change, out, err)
}

// isPatch refuses bodies that say to be something else than a JSON merge patch.
func isPatch(c echo.Context) error {
	media, _, err := mime.ParseMediaType(c.Request().Header.Get(echo.HeaderContentType))
	switch media {
	case "", mergePatch, string(policydoc.JSON), "application/octet-stream", "application/x-www-form-urlencoded", "text/plain":
		if err == nil || media == "" && c.Request().Header.Get(echo.HeaderContentType) == "" {
			return nil
		}
	}
	c.Response().Header().Set("Accept-Patch", mergePatch)
	return &failure{status: http.StatusUnsupportedMediaType, kind: "unsupported-media-type",
		detail: "a patch is a JSON merge patch (RFC 7396): " + mergePatch}
}
