package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
)

func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

func (s *server) getPolicySet(c echo.Context) error {
	v, err := s.Policies.Newest(c.Request().Context())
	if err != nil {
		return storeFailure(err)
	}
	if v.Number == 0 {
		v.Format, v.Document = policydoc.YAML, []byte(policies.EmptyDocument)
	}
	header := c.Response().Header()
	header.Set("ETag", etag(v.Number))
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "no-cache")
	if v.Format != policydoc.JSON && wantsJSON(c.Request()) {
		node, err := policydoc.Parse(v.Document, v.Format)
		if err != nil {
			return err
		}
		v.Format, v.Document = policydoc.JSON, policydoc.ToJSON(node)
	}
	if c.Request().Header.Get("If-None-Match") == etag(v.Number) {
		return c.NoContent(http.StatusNotModified)
	}
	return c.Blob(http.StatusOK, string(v.Format), v.Document)
}

// wantsJSON says whether the client asks for JSON by name; otherwise it gets the document as it was written.
func wantsJSON(r *http.Request) bool {
	for _, part := range strings.Split(r.Header.Get("Accept"), ",") {
		if media, _, err := mime.ParseMediaType(part); err == nil && media == string(policydoc.JSON) {
			return true
		}
	}
	return false
}

// PutAnswer is the answer to a change of the policy set.
type PutAnswer struct {
	// Version is the new version, or the one it would have been.
	Version uint64        `json:"version"`
	DryRun  bool          `json:"dry_run"`
	Summary string        `json:"summary"`
	Diff    policies.Diff `json:"diff"`
}

func (s *server) putPolicySet(c echo.Context) error {
	change := policies.Change{Author: author(c)}
	var err error
	if change.DryRun, err = boolParam(c, "dry_run"); err != nil {
		return err
	}
	if change.Expected, change.Any, err = ifMatch(c.Request().Header); err != nil {
		return err
	}
	if err = plainBody(c.Request()); err != nil {
		return err
	}
	format, err := formatOf(c.Request().Header.Get(echo.HeaderContentType))
	if err != nil {
		return err
	}
	if change.Document, err = s.body(c, policydoc.MaxBytes); err != nil {
		return err
	}
	if change.Format = format; format == "" {
		change.Format = policydoc.Sniff(change.Document)
	}
	out, err := s.Policies.Put(c.Request().Context(), change)
	if err != nil {
		return storeFailure(err)
	}
	if !change.DryRun {
		c.Response().Header().Set("ETag", etag(out.Version))
		s.Log.Info("policy set changed", "id", requestID(c), "version", out.Version, "author", change.Author, "summary", out.Diff.String())
	}
	return c.JSON(http.StatusOK, PutAnswer{out.Version, change.DryRun, out.Diff.String(), out.Diff})
}

// ifMatch reads which version a change replaces.
func ifMatch(h http.Header) (version uint64, any bool, err error) {
	text := strings.TrimSpace(h.Get("If-Match"))
	switch {
	case text == "":
		return 0, false, &failure{status: http.StatusPreconditionRequired, kind: "precondition-required",
			detail: `say which version you change: If-Match with the ETag that GET returned, like "3"; "0" for an empty store; * for whatever there is`}
	case text == "*":
		return 0, true, nil
	case len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"':
		if version, err = strconv.ParseUint(text[1:len(text)-1], 10, 53); err == nil {
			return version, false, nil
		}
	}
	return 0, false, badRequest(`If-Match must be one ETag like "3", or *`)
}

// formatOf reads the media type of a document; empty means that the text itself tells.
func formatOf(contentType string) (policydoc.Format, error) {
	if contentType == "" {
		return "", nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", badRequest("Content-Type is malformed")
	}
	switch media {
	case "application/json":
		return policydoc.JSON, nil
	case "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "application/vnd.yaml":
		return policydoc.YAML, nil
	case "application/octet-stream", "text/plain", "application/x-www-form-urlencoded": // what tools send unasked
		return "", nil
	}
	return "", &failure{status: http.StatusUnsupportedMediaType, kind: "unsupported-media-type",
		detail: "a policy set is application/yaml or application/json"}
}

// plainBody refuses encoded bodies: a bound on bytes must be a bound on what they unfold to.
func plainBody(r *http.Request) error {
	if e := r.Header.Get(echo.HeaderContentEncoding); e != "" && !strings.EqualFold(e, "identity") {
		return &failure{status: http.StatusUnsupportedMediaType, kind: "unsupported-media-type",
			detail: "send the body without Content-Encoding"}
	}
	return nil
}

// body reads a request's body of at most limit bytes.
func (s *server) body(c echo.Context, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return nil, &failure{status: http.StatusBadRequest, kind: "bad-request", detail: "the body could not be read", cause: err}
	}
	return body, err
}

func boolParam(c echo.Context, name string) (bool, error) {
	switch c.QueryParam(name) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, badRequest("%s must be true or false", name)
}
